# cmake -DINPUT=FILE -DOUTPUT=FILE.c -DNAME=symbol -P embed.cmake: a file as a C array.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "((0x..,){16})" "\\1\n    " bytes "${bytes}")
file(WRITE ${OUTPUT}
    "#include \"server/${HEADER}\"\n\nconst unsigned char ${NAME}[] = {\n    ${bytes}};\nconst size_t ${NAME}_len = sizeof(${NAME});\n")
