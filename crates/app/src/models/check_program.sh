#!/bin/sh
# What a process of the app's own may do, for the tests of check.rs and measuring.rs: `models check --json FOLDER`
# and `models measure --json FILE FOLDER` as the program gets it, where the folder's name says what to do.
case "$*" in
"models measure --json "*/usable) echo '{"before":12.1,"after":12.4}' ;;
*/overflows) echo '{"before":12.1,"after":null}' ;;
"models check --json "*/usable)
    echo '{"ok":true,"facts":{"parameters":7,"quantization_bits":4,"context_length":4096,"weight_bytes":100,"kv_bytes_per_token":1,"context_tokens":4096,"kv_bytes":10,"total_bytes":120}}' ;;
*/broken) echo '{"ok":false,"kind":"broken","detail":"tokenizer.json is not valid"}' ;;
*/hangs) while :; do :; done ;;
*/hangs-silently) exec <&- >&- 2>&-; while :; do :; done ;;
*/waits) read -r _ < "$4.go" ;;
*/killed) kill -KILL $$ ;;
*/aborts) kill -ABRT $$ ;;
*/runs-out-of-memory) echo 'memory allocation of 4294967296 bytes failed' >&2; kill -ABRT $$ ;;
*/grows)
    part=0123456789abcdef
    while [ ${#part} -lt 4000000 ]; do part=$part$part; done
    text=
    while :; do text=$text$part; done ;;
*/panics) exit 101 ;;
*/refuses) echo 'unexpected argument' >&2; exit 2 ;;
*/says-nothing) ;;
*/garbage) echo 'running 3 tests' ;;
*/endless) while :; do echo 'and on, and on, and on, and on, and on, and on, and on, and on'; done ;;
*/complains) i=0; while [ $i -lt 9999 ]; do echo 'a long complaint, a long complaint' >&2; i=$((i + 1)); done
    echo '{"ok":false,"kind":"broken","detail":"after complaints"}' ;;
*/environment)
    detail=$(env | sed 's/=.*//' | sort | tr '\n' ' ')
    printf '{"ok":false,"kind":"broken","detail":"%s"}' "$detail" ;;
*) exit 3 ;;
esac
