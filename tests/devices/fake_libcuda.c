/* In place of NVIDIA's driver: takes the calls of its binding, keeps memory on the host.

   One device. Work is done at once, except between cuStreamBeginCapture and
   cuStreamEndCapture: then it becomes a graph. Of kernels it knows `elementwise`. What
   is asked for is written to standard error, a line each. FAKE_CUDA_FAIL is the name
   of a function and the number of the error that it gives: "cuLaunchKernelEx=700". */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef unsigned long long Address;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, BAD_DEVICE = 101, NO_CONTEXT = 201 };

static int fails(const char *name) {
  const char *wanted = getenv("FAKE_CUDA_FAIL");
  size_t length = strlen(name);
  if (wanted && !strncmp(wanted, name, length) && wanted[length] == '=')
    return atoi(wanted + length + 1);
  return 0;
}

static __thread void *current; /* the context of a thread */

#define CALL(...)                          \
  do {                                     \
    int failure_ = fails(__func__);        \
    if (failure_) return failure_;         \
    if (!current) return NO_CONTEXT;       \
    fprintf(stderr, __VA_ARGS__);          \
    fputc('\n', stderr);                   \
  } while (0)

/* Work and graphs */

typedef struct {
  enum { COPY, FILL, LAUNCH } what;
  void *to, *from;
  size_t size;
  int byte;
  void *arguments[3];
  long long count;
} Work;

typedef struct {
  Work work[64];
  int count;
} Graph;

typedef struct {
  Graph *capture;
} Stream;

static void perform(Work *w) {
  if (w->what == COPY) memmove(w->to, w->from, w->size);
  if (w->what == FILL) memset(w->to, w->byte, w->size);
  if (w->what == LAUNCH)
    for (long long i = 0; i < w->count; i++) {
      float x = ((float *)w->arguments[0])[i], y = ((float *)w->arguments[1])[i];
      ((float *)w->arguments[2])[i] = x * x + y;
    }
}

static Result put(Stream *stream, Work w) {
  if (stream->capture)
    stream->capture->work[stream->capture->count++] = w;
  else
    perform(&w);
  return OK;
}

/* Devices */

Result cuInit(unsigned flags) { return fails(__func__); }
Result cuDriverGetVersion(int *version) {
  const char *wanted = getenv("FAKE_CUDA_VERSION");
  *version = wanted ? atoi(wanted) : 13000;
  return OK;
}
Result cuDeviceGetCount(int *count) { *count = 1; return fails(__func__); }
Result cuDeviceGet(int *device, int number) {
  *device = number;
  return number ? BAD_DEVICE : OK;
}
Result cuDeviceGetName(char *name, int length, int device) {
  strncpy(name, "a fake GPU", length);
  return OK;
}
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 75: *value = 8; break;      /* compute capability */
    case 76: *value = 6; break;
    case 16: *value = 20; break;     /* multiprocessors */
    case 39: *value = 1536; break;   /* threads of each */
    case 82: *value = 65536; break;  /* registers of each */
    case 8: *value = 49152; break;   /* shared memory of a block */
    default: *value = 1;
  }
  return OK;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)0x100;
  return OK;
}
Result cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
Result cuCtxGetCurrent(void **context) { *context = current; return OK; }
Result cuCtxSetCurrent(void *context) { current = context; return OK; }
Result cuCtxPushCurrent_v2(void *context) { current = context; return OK; }
Result cuCtxPopCurrent_v2(void **context) { *context = current; return OK; }
Result cuCtxGetDevice(int *device) { *device = 0; return OK; }
Result cuCtxGetDevice_v2(int *device, void *context) { *device = 0; return OK; }
Result cuMemGetInfo_v2(size_t *left, size_t *all) {
  *left = 3000;
  *all = 4000;
  return fails(__func__);
}

/* Memory */

Result cuDeviceGetMemPool(void **pool, int device) { *pool = (void *)0x200; return OK; }
Result cuDeviceGetDefaultMemPool(void **pool, int device) {
  *pool = (void *)0x200;
  return OK;
}
Result cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
  memset(value, 0, 8);
  return OK;
}
Result cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return OK; }
Result cuMemAllocFromPoolAsync(Address *address, size_t size, void *pool,
                               Stream *stream) {
  CALL("allocate %zu", size);
  *address = (Address)aligned_alloc(256, (size + 255) / 256 * 256);
  return OK;
}
Result cuMemFreeAsync(Address address, Stream *stream) {
  CALL("free");
  free((void *)address);
  return OK;
}
Result cuMemcpyAsync(Address to, Address from, size_t size, Stream *stream) {
  CALL("copy %zu", size);
  return put(stream, (Work){COPY, (void *)to, (void *)from, size});
}
Result cuMemcpyWithAttributesAsync(Address to, Address from, size_t size,
                                   void *attributes, Stream *stream) {
  return cuMemcpyAsync(to, from, size, stream);
}
Result cuMemsetD8Async(Address to, unsigned char byte, size_t count, Stream *stream) {
  CALL("fill %zu with %d", count, byte);
  return put(stream, (Work){FILL, (void *)to, 0, count, byte});
}
Result cuPointerGetAttributes(unsigned count, int *attributes, void **values,
                              Address address) {
  return INVALID;
}

/* Streams and events */

Result cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  *stream = calloc(1, sizeof **stream);
  return OK;
}
Result cuStreamDestroy_v2(Stream *stream) { return OK; }
Result cuStreamGetCtx(Stream *stream, void **context) {
  *context = (void *)0x100;
  return OK;
}
Result cuStreamGetDevice(Stream *stream, int *device) { *device = 0; return OK; }
Result cuStreamSynchronize(Stream *stream) { CALL("synchronize"); return OK; }
Result cuCtxGetStreamPriorityRange(int *least, int *most) {
  *least = *most = 0;
  return OK;
}
Result cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return OK; }
Result cuEventDestroy_v2(void *event) { free(event); return OK; }
Result cuEventRecord(void *event, Stream *stream) { CALL("record"); return OK; }
Result cuEventQuery(void *event) { return fails(__func__); }
Result cuStreamWaitEvent(Stream *stream, void *event, unsigned flags) {
  CALL("wait");
  return OK;
}

/* Kernels */

Result cuLibraryLoadData(void **library, const char *code, void *o, void *v, unsigned n,
                         void *p, void *w, unsigned m) {
  CALL("load %s", code[0] == 127 ? "machine code" : "PTX");
  *library = strdup(code);
  return OK;
}
Result cuLibraryUnload(void *library) { free(library); return OK; }
Result cuLibraryGetKernel(void **kernel, const char *library, const char *name) {
  char entry[99];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  *kernel = strdup(name);
  return strstr(library, entry) ? OK : NOT_FOUND;
}
Result cuKernelGetAttribute(int *value, int attribute, const char *kernel, int device) {
  switch (attribute) {
    case 1: *value = 1024; break; /* shared memory */
    case 3: *value = 8; break;    /* local memory */
    case 4: *value = 40; break;   /* registers */
    default: *value = 0;
  }
  return OK;
}
Result cuKernelGetLibrary(void **library, void *kernel) { *library = 0; return OK; }
Result cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return OK;
}

typedef struct {
  unsigned grid[3], block[3], shared;
  Stream *stream;
} Config;

Result cuLaunchKernelEx(const Config *config, const char *kernel, void **given,
                        void **extra) {
  CALL("launch %s %u %u", kernel, config->grid[0], config->block[0]);
  Work w = {LAUNCH};
  for (int i = 0; i < 3; i++) w.arguments[i] = *(void **)given[i];
  w.count = *(long long *)given[3];
  return put(config->stream, w);
}
Result cuLaunchKernel(const char *kernel, unsigned gx, unsigned gy, unsigned gz,
                      unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      Stream *stream, void **given, void **extra) {
  return cuLaunchKernelEx(&(Config){{gx, gy, gz}, {bx, by, bz}, shared, stream}, kernel,
                          given, extra);
}

/* Graphs */

Result cuStreamBeginCapture_v2(Stream *stream, int mode) {
  CALL("begin capture");
  stream->capture = calloc(1, sizeof(Graph));
  return OK;
}
Result cuStreamEndCapture(Stream *stream, Graph **graph) {
  CALL("end capture");
  *graph = stream->capture;
  stream->capture = 0;
  return OK;
}
Result cuStreamIsCapturing(Stream *stream, int *is) { *is = !!stream->capture; return OK; }
Result cuStreamGetCaptureInfo_v3(Stream *stream, int *status, void *id, Graph **graph,
                                 void *d, void *e, void *n) {
  *status = !!stream->capture;
  if (graph) *graph = stream->capture;
  return OK;
}
Result cuGraphInstantiateWithParams(Graph **made, Graph *graph, int *parameters) {
  CALL("instantiate %d", graph->count);
  parameters[6] = 0; /* the result */
  *made = graph;
  return OK;
}
Result cuGraphInstantiateWithFlags(Graph **made, Graph *graph, Address flags) {
  *made = graph;
  return OK;
}
Result cuGraphLaunch(Graph *graph, Stream *stream) {
  CALL("launch graph %d", graph->count);
  for (int i = 0; i < graph->count; i++) put(stream, graph->work[i]);
  return OK;
}
Result cuGraphExecDestroy(Graph *graph) { return OK; }
Result cuGraphDestroy(Graph *graph) { return OK; }

Result cuUserObjectCreate(void **made, void *thing, void *destroy, unsigned count,
                          unsigned flags) {
  *made = thing;
  return OK;
}
Result cuUserObjectRelease(void *thing, unsigned count) { return OK; }
Result cuGraphRetainUserObject(Graph *graph, void *thing, unsigned count,
                               unsigned flags) {
  return OK;
}
Result cuGraphReleaseUserObject(Graph *graph, void *thing, unsigned count) {
  return OK;
}

/* Errors */

Result cuGetErrorName(int error, const char **name) {
  switch (error) {
    case INVALID: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case BAD_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case NO_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case 222: *name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"; break;
    case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    default: *name = "CUDA_ERROR_UNKNOWN";
  }
  return OK;
}
Result cuGetErrorString(int error, const char **text) { *text = "it fails"; return OK; }

Result cuGetProcAddress_v2(const char *symbol, void **found, int version, Address flags,
                           int *status) {
  static const char *suffixes[] = {"_v3", "_v2", ""};
  char name[200];
  if (!strcmp(symbol, "cuGetProcAddress")) symbol = "cuGetProcAddress_v2";
  for (int i = 0; i < 3; i++) {
    snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
    if ((*found = dlsym(RTLD_DEFAULT, name))) break;
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    if (self && (*found = dlsym(self, name))) break;
  }
  if (status) *status = *found ? 0 : 1;
  if (!*found && getenv("FAKE_CUDA_MISSING")) fprintf(stderr, "missing %s\n", symbol);
  return *found ? OK : NOT_FOUND;
}
