// A batch that several runs share: each writes a part, and the parts become one output.
//
// Part r of OUTPUT is the journal OUTPUT.part<r>. It survives a stop or a crash, and the same
// command goes on with it; the output appears at the end, whole, and the parts are gone then.
#pragma once

#include <string>
#include <vector>

namespace peregrine {

std::string batch_part(const std::string& output, int part);

// Refuses what parts cannot be made of: "-" as either file, and an output with results in it, which
// `overwrite` removes, parts included. Throws Error(kInvalidArgument) and Error(kIo).
void prepare_batch_parts(const std::string& input, const std::string& output, int parts,
                         bool overwrite);

// Writes the results of all parts to `output` and removes the parts. With `input_order` the results
// come in the order of their lines, as they do in each part; else part after part. A line at a time
// is in memory. Throws Error(kIo), Error(kInvalidArgument); the parts are then still there.
void merge_batch_parts(const std::string& output, int parts, bool input_order);

}  // namespace peregrine
