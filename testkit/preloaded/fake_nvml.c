/* Simulates NVIDIA's management library, for tests on machines without a GPU.
 *
 * FAKE_NVML="name;total_mib;used_mib,..." describes the GPUs, ordered by PCI bus; FAKE_NVML_FILE names a file with such
 * a text that is read at every query, so that a test can simulate other programs' allocations. A total of 0 is a GPU that
 * has fallen off the bus. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 64
#define MIB (1ULL << 20)
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

typedef struct { char name[96]; unsigned long long total, used; } gpu;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;

static unsigned read_gpus(gpu *gpus) {
    static const char *none = "";
    char text[8192] = "";
    const char *path = getenv("FAKE_NVML_FILE"), *given = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
    } else {
        snprintf(text, sizeof text, "%s", given ? given : none);
    }
    unsigned count = 0;
    char *rest = text, *entry;
    while (count < GPUS && (entry = strsep(&rest, ",\n")) != NULL) {
        gpu *g = &gpus[count];
        if (sscanf(entry, " %95[^;];%llu;%llu", g->name, &g->total, &g->used) == 3) count++;
    }
    return count;
}

/* A handle is the number of a GPU plus one. */
static int look(void *handle, gpu *found) {
    gpu gpus[GPUS];
    size_t index = (size_t)handle - 1;
    if (index >= read_gpus(gpus)) return INVALID_ARGUMENT;
    *found = gpus[index];
    return found->total ? SUCCESS : GPU_IS_LOST;
}

static int put(const char *text, char *out, unsigned length) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    gpu gpus[GPUS];
    *count = read_gpus(gpus);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    gpu gpus[GPUS];
    if (index >= read_gpus(gpus)) return INVALID_ARGUMENT;
    *handle = (void *)((size_t)index + 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
    gpu found;
    int result = look(handle, &found);
    return result == SUCCESS ? put(found.name, out, length) : result;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    char uuid[64];
    snprintf(uuid, sizeof uuid, "GPU-%08zx-0000-0000-0000-000000000000", (size_t)handle - 1);
    return put(uuid, out, length);
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    gpu found;
    int result = look(handle, &found);
    if (result != SUCCESS) return result;
    memory->total = found.total * MIB;
    memory->reserved = 0;
    memory->used = found.used * MIB;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, utilization *rates) {
    rates->gpu = 10 * (unsigned)((size_t)handle - 1);
    rates->memory = 5;
    return SUCCESS;
}
