# Makes a source file of the server's page, again whenever the page changes: the program needs no
# file beside it.
set(PEREGRINE_PAGE ${CMAKE_SOURCE_DIR}/src/server/page/index.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PEREGRINE_PAGE})
file(READ ${PEREGRINE_PAGE} PEREGRINE_PAGE_HTML)
configure_file(${CMAKE_SOURCE_DIR}/cmake/page_html.cc.in ${CMAKE_BINARY_DIR}/generated/page_html.cc @ONLY)
