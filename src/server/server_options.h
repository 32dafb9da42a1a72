// Everything that can be set about the server; the flags and the config file fill it.
#pragma once

#include <string>
#include <vector>

#include "server/http.h"

namespace peregrine {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                    // 0: any free one
  std::vector<std::string> api_keys;  // none: everybody may ask
  std::string tls_certificate, tls_key;
  std::string cors_origin;  // pages of this origin may ask from a browser; "*": all; empty: none
  HttpLimits limits;
  int io_threads = 2, worker_threads = 2;

  std::string model_name;                            // shown by /v1/models; requests may name any
  bool strict_model = false;                         // other names are refused
  int max_tokens = 0;                                // of one answer; 0: the context
  double deadline_seconds = 0;                       // of one request, from its arrival; 0: none
  double shutdown_seconds = 30;                      // that running requests get to end
  bool log_prompts = false;                          // write conversations into the log
  std::string conversation_header = "X-Session-ID";  // names a request's conversation
  bool strict_conversations = false;                 // refuse a second turn that names none
  bool exact_turns = true;  // render earlier answers with the tokens that were sampled
};

}  // namespace peregrine
