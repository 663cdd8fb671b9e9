/* Runs a fuzz target over the files of the folders it is given: the corpus as an ordinary test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    size_t cap = 1 << 20;
    uint8_t *data = malloc(cap);
    size_t size = data != NULL ? fread(data, 1, cap, file) : 0;
    /* Exactly as large as the input, so that a sanitizer sees a read behind its end. */
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (data != NULL && exact != NULL) {
        memcpy(exact, data, size);
        (void)LLVMFuzzerTestOneInput(exact, size);
    }
    free(exact);
    free(data);
    (void)fclose(file);
    return 0;
}

static int run_folder(const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort), files = 0, failed = 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') {
            files++;
            failed += run_file(path) < 0;
        }
        free(entries[i]);
    }
    free(entries);
    (void)printf("%s: %d inputs\n", folder, files);
    return files == 0 || failed > 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    for (int i = 1; i < argc; i++)
        failed += run_folder(argv[i]) < 0;
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
