/* gcc's unwinder asks the C library for the table of the program that an address of code belongs to. It was built for glibc, and
 * musl has no such function. A static program has one table, which its program headers name. */
#include <elf.h>

/* As in glibc's dlfcn.h. */
struct dl_find_object {
    unsigned long long flags;
    void *map_start, *map_end, *link_map, *eh_frame;
    unsigned long long reserved[7];
};

extern const Elf64_Ehdr __ehdr_start; /* made by the linker */

int _dl_find_object(void *address, struct dl_find_object *found)
{
    const Elf64_Phdr *headers = (const void *)((const char *)&__ehdr_start + __ehdr_start.e_phoff);
    (void)address;
    for (int i = 0; i < __ehdr_start.e_phnum; i++) {
        if (headers[i].p_type == PT_GNU_EH_FRAME) {
            *found = (struct dl_find_object){ .eh_frame = (void *)headers[i].p_vaddr };
            return 0;
        }
    }
    return -1;
}
