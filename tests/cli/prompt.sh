# SPDX-License-Identifier: Apache-2.0
#
# Prompts: from the command line, a file or stdin; empty, too long, invalid text.
text() { nibble generate "$MODEL" --quiet --temp 0 -n 12 "$@"; }
expected=$(text -p 'There was once a king')
printf 'There was once a king' >prompt
equal 'prompt from a file' "$expected" "$(text --file prompt)"
equal 'prompt from stdin' "$expected" "$(text --file - <prompt)"
equal 'prompt from a pipe' "$expected" "$(text -f <(cat prompt))"
empty=$(text -p '')
check 'an empty prompt gives text' [ -n "$empty" ]
equal 'no prompt is like an empty one' "$empty" "$(text)"
equal 'an empty file is like an empty prompt' "$empty" "$(text --file /dev/null)"
check 'emoji, control and combining characters in a prompt' text -p $'Grüße, 世界 \U1F469‍\U1F467 \t\r\n \u202e \u0301'
nibble generate "$MODEL" --quiet --temp 0 -n 60 --ignore-eos -p $'\U1F469' >emoji
check 'the output is valid UTF-8' iconv -f utf-8 -t utf-16 -o /dev/null emoji
refused 3 '*not valid UTF-8: byte 0xff at offset 4*' generate "$MODEL" -p $'King\xff' -n 1
refused 3 '*not valid UTF-8: byte 0xc3 at offset 0*' generate "$MODEL" -p $'\xc3' -n 1
refused 3 '*not valid UTF-8: byte 0x80 at offset 3*' generate "$MODEL" -p $'abc\x80def' -n 1
refused 3 '*not valid UTF-8: byte 0xc0 at offset 1*' generate "$MODEL" -p $'a\xc0\xaf' -n 1
refused 3 '*not valid UTF-8: byte 0xe0 at offset 0*' generate "$MODEL" -p $'\xe0\x80\xaf' -n 1
refused 3 '*not valid UTF-8: byte 0xed at offset 2*' generate "$MODEL" -p $'ab\xed\xa0\x80' -n 1
refused 3 '*not valid UTF-8: byte 0xf4 at offset 0*' generate "$MODEL" -p $'\xf4\x90\x80\x80' -n 1
refused 3 '*not valid UTF-8: byte 0xe2 at offset 3*' generate "$MODEL" -p $'\xe2\x82\xac\xe2\x82' -n 1
printf 'a\0b' >nul
refused 3 'nul: *NUL byte, at offset 1' generate "$MODEL" --file nul -n 1
refused 6 'nosuch: *No such file or directory' generate "$MODEL" --file nosuch
refused 6 '.: *Is a directory' generate "$MODEL" --file .
if [ -e /dev/zero ]; then refused 6 '/dev/zero: *File too large' generate "$MODEL" --file /dev/zero; fi
equal 'exit status on Ctrl-C while waiting for a prompt' 130 "$(sleep 1 | {
    timeout -s INT --preserve-status 0.4 "$NIBBLE" generate "$MODEL" -f - 2>/dev/null
    echo $?
})"
refused 2 'the prompt has * tokens, but the context is 512; shorten it' generate "$MODEL" --file "$MODEL/heldout.txt"
refused 2 'the prompt has 5 tokens, but the context is 4; shorten it or raise --context' generate "$MODEL" -p 'Once upon a time' -c 4
check 'a prompt that fills the context' nibble generate "$MODEL" -p 'Once upon a time' -c 5
