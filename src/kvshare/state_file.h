// Images of states as files: the image's bytes and nothing else (docs/state_image.md).
//
// A file is complete or absent: written under a temporary name, then renamed. Files are not synced;
// what a power cut damages, the hashes find. All functions throw Error(kIo) whose message is the
// second half of a sentence, and Error(kOutOfMemory).
#pragma once

#include <string>

#include "engine/saved_state.h"
#include "kvshare/state_image.h"

namespace peregrine {

// What a file of this name is called while it is written.
std::string temporary_name(const std::string& path);

// Removes what it has written when it fails.
void write_image_file(const std::string& path, const StateImage& image);

// The manifest alone; checks that it fits the file's size and the shape; null: any engine's.
StateManifest read_manifest_file(const std::string& path, const StateShape* shape = nullptr);
// All of it, every block checked.
StateImage read_image_file(const std::string& path, const StateShape* shape = nullptr);

}  // namespace peregrine
