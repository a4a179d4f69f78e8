/* Calls of cuBLAS, cuBLASLt and cuDNN as ranges, with shapes and types: preloaded into a program on
 * request, each function here stands before the library's own, puts a range of the library's domain
 * around it and calls it. What is launched inside is then joined as with any range.
 *
 * Only symbols that a program is linked with are met: not those that it looks up itself (XLA), nor a
 * library that is linked into it. Nothing runs before the first such call. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* Only that build.py may know what it was built from. */
EXPORT const char gputui_calls_sources[] = SOURCES_MARK;

enum { NOT_INITIALIZED = 1, DESCRIBED_MAX = 160 }; /* in cuBLAS and in cuDNN */

static const char *const cublas_files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL};
static const char *const lt_files[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", NULL};
static const char *const cudnn_files[] = {"libcudnn.so.9", "libcudnn.so.8", NULL};

/* The library's function, which another call found before. */
static void *found(void **function, const char *const *files, const char *name)
{
    void *known = __atomic_load_n(function, __ATOMIC_ACQUIRE);
    for (; known == NULL && *files != NULL; files++) {
        void *library = dlopen(*files, RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            known = dlsym(library, name);
    }
    if (known == NULL)
        known = dlsym(RTLD_NEXT, name);
    __atomic_store_n(function, known, __ATOMIC_RELEASE);
    return known;
}

/* The capture library, once the driver or NVTX has loaded it. */
static void (*push)(const char *, const char *);
static void (*pop)(const char *);

static int can_push(void)
{
    if (__atomic_load_n((void **)&pop, __ATOMIC_ACQUIRE) != NULL)
        return 1;
    const char *path = getenv("GPUTUI_CAPTURE_LIBRARY");
    void *library = path != NULL ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library == NULL)
        return 0;
    __atomic_store_n((void **)&push, dlsym(library, "gputui_library_push"), __ATOMIC_RELEASE);
    __atomic_store_n((void **)&pop, dlsym(library, "gputui_library_pop"), __ATOMIC_RELEASE);
    return push != NULL && pop != NULL;
}

/* A library calls its own functions, and another's: the outermost call is what the program asked for. */
static __thread int depth;

static int begin(const char *domain, const char *text)
{
    if (depth++ > 0 || !can_push())
        return 0;
    push(domain, text);
    return 1;
}

static void end(const char *domain, int began)
{
    depth--;
    if (began)
        pop(domain);
}

/* cudaDataType_t (library_types.h). */
static const char *type_name(int type)
{
    switch (type) {
    case 0: return "fp32";
    case 1: return "fp64";
    case 2: return "fp16";
    case 3: return "int8";
    case 4: return "complex64";
    case 5: return "complex128";
    case 10: return "int32";
    case 14: return "bf16";
    case 28: return "fp8 e4m3";
    case 29: return "fp8 e5m2";
    case 33: return "fp4 e2m1";
    default: return "other type";
    }
}

/* cublasComputeType_t: what differs from the type of the matrices. */
static const char *compute_name(int type)
{
    return type == 77 ? " in tf32" : type == 74 ? " in fp16" : type == 75 ? " in bf16" : "";
}

/* "cublasGemmEx bf16 TN 1024x512x256 of 12": D is 1024 × 512, the sum goes over 256, 12 at once. */
static void describe(char *text, const char *name, const char *type, const char *compute, int a, int b,
                     int64_t m, int64_t n, int64_t k, int64_t batch)
{
    int used = snprintf(text, DESCRIBED_MAX, "%s %s%s %c%c %lldx%lldx%lld", name, type, compute,
                        "NTC"[a >= 0 && a < 3 ? a : 0], "NTC"[b >= 0 && b < 3 ? b : 0], (long long)m,
                        (long long)n, (long long)k);
    if (batch > 1 && used > 0 && used < DESCRIBED_MAX)
        snprintf(text + used, (size_t)(DESCRIBED_MAX - used), " of %lld", (long long)batch);
}

#define CUBLAS "cuBLAS"
#define CALL(files, name, parameters, arguments, domain, ...)                                          \
    EXPORT int name parameters                                                                         \
    {                                                                                                  \
        static void *function;                                                                         \
        int(*real) parameters = (int(*) parameters)found(&function, files, #name);                     \
        if (real == NULL)                                                                              \
            return NOT_INITIALIZED;                                                                    \
        char text[DESCRIBED_MAX];                                                                      \
        __VA_ARGS__;                                                                                   \
        int began = begin(domain, text), status = real arguments;                                      \
        end(domain, began);                                                                            \
        return status;                                                                                 \
    }

#define GEMM(name, type)                                                                               \
    CALL(cublas_files, name,                                                                           \
         (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, \
          const void *b, int ldb, const void *beta, void *c, int ldc),                                 \
         (handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), CUBLAS,                       \
         describe(text, #name, type, "", ta, tb, m, n, k, 1))

GEMM(cublasSgemm_v2, "fp32")
GEMM(cublasDgemm_v2, "fp64")
GEMM(cublasHgemm, "fp16")
GEMM(cublasCgemm_v2, "complex64")

#define GEMM_STRIDED(name, type)                                                                       \
    CALL(cublas_files, name,                                                                           \
         (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, \
          long long sa, const void *b, int ldb, long long sb, const void *beta, void *c, int ldc,      \
          long long sc, int batch),                                                                    \
         (handle, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch), CUBLAS,    \
         describe(text, #name, type, "", ta, tb, m, n, k, batch))

GEMM_STRIDED(cublasSgemmStridedBatched, "fp32")
GEMM_STRIDED(cublasDgemmStridedBatched, "fp64")
GEMM_STRIDED(cublasHgemmStridedBatched, "fp16")

CALL(cublas_files, cublasGemmEx,
     (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda,
      const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc, int compute, int algo),
     (handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algo), CUBLAS,
     describe(text, "cublasGemmEx", type_name(at), compute_name(compute), ta, tb, m, n, k, 1))

CALL(cublas_files, cublasGemmStridedBatchedEx,
     (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda,
      long long sa, const void *b, int bt, int ldb, long long sb, const void *beta, void *c, int ct,
      int ldc, long long sc, int batch, int compute, int algo),
     (handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batch, compute,
      algo),
     CUBLAS,
     describe(text, "cublasGemmStridedBatchedEx", type_name(at), compute_name(compute), ta, tb, m, n, k,
              batch))

CALL(cublas_files, cublasGemmBatchedEx,
     (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at,
      int lda, const void *const *b, int bt, int ldb, const void *beta, void *const *c, int ct, int ldc,
      int batch, int compute, int algo),
     (handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, batch, compute, algo),
     CUBLAS,
     describe(text, "cublasGemmBatchedEx", type_name(at), compute_name(compute), ta, tb, m, n, k, batch))

/* Attributes of cuBLASLt's descriptors (cublasLt.h). */
enum { LAYOUT_TYPE = 0, LAYOUT_ROWS = 2, LAYOUT_COLUMNS = 3, LAYOUT_BATCH = 5 };
enum { MATMUL_COMPUTE = 0, MATMUL_TRANSA = 3, MATMUL_TRANSB = 4 };

static uint64_t attribute_of(const char *name, void **function, const void *of, int attribute, size_t size)
{
    uint64_t value = 0;
    size_t written = 0;
    int (*get)(const void *, int, void *, size_t, size_t *) =
        (int (*)(const void *, int, void *, size_t, size_t *))found(function, lt_files, name);
    if (get == NULL || of == NULL || get(of, attribute, &value, size, &written) != 0)
        return 0;
    return value;
}

static uint64_t layout(const void *of, int attribute, size_t size)
{
    static void *function;
    return attribute_of("cublasLtMatrixLayoutGetAttribute", &function, of, attribute, size);
}

static uint64_t matmul(const void *of, int attribute)
{
    static void *function;
    return attribute_of("cublasLtMatmulDescGetAttribute", &function, of, attribute, sizeof(int32_t));
}

static void describe_matmul(char *text, const void *desc, const void *a, const void *d)
{
    int ta = (int)matmul(desc, MATMUL_TRANSA), tb = (int)matmul(desc, MATMUL_TRANSB);
    describe(text, "cublasLtMatmul", type_name((int)layout(a, LAYOUT_TYPE, sizeof(uint32_t))),
             compute_name((int)matmul(desc, MATMUL_COMPUTE)), ta, tb,
             (int64_t)layout(d, LAYOUT_ROWS, sizeof(uint64_t)),
             (int64_t)layout(d, LAYOUT_COLUMNS, sizeof(uint64_t)),
             (int64_t)layout(a, ta ? LAYOUT_ROWS : LAYOUT_COLUMNS, sizeof(uint64_t)),
             (int64_t)layout(a, LAYOUT_BATCH, sizeof(int32_t)));
}

CALL(lt_files, cublasLtMatmul,
     (void *handle, void *desc, const void *alpha, const void *a, void *ad, const void *b, void *bd,
      const void *beta, const void *c, void *cd, void *d, void *dd, const void *algo, void *workspace,
      size_t bytes, void *stream),
     (handle, desc, alpha, a, ad, b, bd, beta, c, cd, d, dd, algo, workspace, bytes, stream), "cuBLASLt",
     describe_matmul(text, desc, ad, dd))

#define NAMED(name) snprintf(text, sizeof text, "%s", name)

/* What a plan of cuDNN's computes is its secret: its kernels say it. */
CALL(cudnn_files, cudnnBackendExecute, (void *handle, void *plan, void *pack), (handle, plan, pack),
     "cuDNN", NAMED("cudnnBackendExecute"))

CALL(cudnn_files, cudnnConvolutionForward,
     (void *handle, const void *alpha, void *xd, const void *x, void *wd, const void *w, void *cd, int algo,
      void *workspace, size_t bytes, const void *beta, void *yd, void *y),
     (handle, alpha, xd, x, wd, w, cd, algo, workspace, bytes, beta, yd, y), "cuDNN",
     NAMED("cudnnConvolutionForward"))
