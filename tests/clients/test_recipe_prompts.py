"""The stored corpus of prompts is what deepseek-recipe renders."""

import unittest

import recipe_corpus


class RecipePrompts(unittest.TestCase):
    def test_stored_corpus_is_the_librarys(self):
        stored = recipe_corpus.CORPUS.read_text(encoding="utf-8").splitlines()
        made = recipe_corpus.build_corpus()
        self.assertEqual(len(made), 3 * recipe_corpus.REQUESTS_OF_A_PROTOCOL)
        for mine, theirs in zip(stored, made, strict=True):
            self.assertEqual(mine, theirs)
