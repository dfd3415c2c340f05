// What stands in a module's image: its architecture and its entries. Nothing of its code is looked at.
#define _GNU_SOURCE
#include "standin.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

static bool is_elf(const void *image) { return !memcmp(image, ELFMAG, SELFMAG); }

static size_t elf_size(const Elf64_Ehdr *e) {
    size_t size = e->e_shoff + (size_t)e->e_shnum * e->e_shentsize;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)((const char *)e + e->e_shoff);
    for (int i = 0; i < e->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > size)
            size = sections[i].sh_offset + sections[i].sh_size;
    return size;
}

// The number after `sm_` that machine code is for: a device of the same major version and no lower minor one runs it.
static int cubin_arch(const Elf64_Ehdr *e) {
    int flags = (int)e->e_flags;
    return e->e_ident[EI_ABIVERSION] >= 8 ? flags >> 8 & 0xFF : flags & 0xFF;
}

static const char hip_code[] = "STANDIN-CODE ";  // of hiprtc.c

bool image_of_hip(const char *image) { return !strncmp(image, hip_code, strlen(hip_code)); }

int image_check(const void *image, const Device *d, size_t *size) {
    const char *text = image;
    if (image_of_hip(text)) {
        const char *arch = text + strlen(hip_code);
        *size = strlen(text) + 1;
        return strcspn(arch, "\n") == strlen(d->arch) && !strncmp(arch, d->arch, strlen(d->arch)) ? OK : NO_BINARY;
    }
    if (is_elf(image)) {
        const Elf64_Ehdr *e = image;
        *size = elf_size(e);
        if (e->e_machine != EM_CUDA) return NO_BINARY;
        int arch = cubin_arch(e);
        return arch / 10 == d->major && arch % 10 <= d->minor ? OK : NO_BINARY;
    }
    const char *target = strstr(text, ".target sm_");
    if (strncmp(text, "//", 2) && strncmp(text, ".version", 8)) return INVALID_IMAGE;
    int arch = 0;
    if (!target || sscanf(target, ".target sm_%d", &arch) != 1) return INVALID_PTX;
    *size = strlen(text) + 1;
    return arch <= 10 * d->major + d->minor ? OK : NO_BINARY;
}

bool image_has_entry(const char *image, size_t size, const char *entry) {
    char name[160];
    if (image_of_hip(image)) {
        snprintf(name, sizeof name, "\nentry %s\n", entry);
        return strstr(image, name) != NULL;
    }
    if (!is_elf(image)) {
        snprintf(name, sizeof name, ".entry %s(", entry);
        return strstr(image, name) != NULL;
    }
    snprintf(name, sizeof name, ".text.%s", entry);
    return memmem(image, size, name, strlen(name) + 1) != NULL;  // with its final 0: the whole name
}
