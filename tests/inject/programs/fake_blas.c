/* Stand-ins for cuBLAS, cuBLASLt and cuDNN, and a program's own library that is linked with them. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { STATUS = 14 };
#if defined LT
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *ad, const void *b,
                   void *bd, const void *beta, const void *c, void *cd, void *d, void *dd,
                   const void *algo, void *workspace, size_t bytes, void *stream)
{
    (void)handle, (void)desc, (void)alpha, (void)a, (void)ad, (void)b, (void)bd, (void)beta, (void)c;
    (void)cd, (void)d, (void)dd, (void)algo, (void)workspace;
    return bytes == 7 && stream == (void *)9 ? STATUS : -1;
}
/* A descriptor is an array of its attributes. */
static int get(const uint64_t *of, int attribute, void *value, size_t size, size_t *written)
{
    memcpy(value, &of[attribute], size);
    *written = size;
    return 0;
}
int cublasLtMatrixLayoutGetAttribute(const void *of, int attribute, void *value, size_t size, size_t *written)
{
    return get(of, attribute, value, size, written);
}
int cublasLtMatmulDescGetAttribute(const void *of, int attribute, void *value, size_t size, size_t *written)
{
    return get(of, attribute, value, size, written);
}
#elif defined BLAS
int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                   int lda, const void *b, int ldb, const void *beta, void *c, int ldc)
{
    (void)handle, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c;
    return ta + tb + m + n + k + ldc;
}
int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int at, int lda, long long sa, const void *b, int bt, int ldb,
                               long long sb, const void *beta, void *c, int ct, int ldc, long long sc,
                               int batch, int compute, int algo)
{
    (void)handle, (void)alpha, (void)a, (void)at, (void)lda, (void)sa, (void)b, (void)bt, (void)ldb;
    (void)sb, (void)beta, (void)ct, (void)sc, (void)ta, (void)tb;
    /* As cuBLAS does, by its own. */
    return cublasSgemm_v2(NULL, 0, 0, m, n, k, NULL, NULL, 0, NULL, 0, NULL, c, ldc) + batch + compute + algo;
}
#elif defined DNN
int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    return handle == NULL && plan == NULL && pack == NULL ? STATUS : -1;
}
#else
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                   const void *, void *, void *, void *, const void *, void *, size_t, void *);
int cublasSgemm_v2(void *, int, int, int, int, int, const void *, const void *, int, const void *, int,
                   const void *, void *, int);
int cublasGemmStridedBatchedEx(void *, int, int, int, int, int, const void *, const void *, int, int,
                               long long, const void *, int, int, long long, const void *, void *, int, int,
                               long long, int, int, int);
int cudnnBackendExecute(void *, void *, void *);

/* What the four calls return, as a string of numbers would. */
int products(int *status)
{
    uint64_t desc[5] = {77, 0, 0, 1, 0};                /* in tf32, A transposed */
    uint64_t a[6] = {14, 0, 256, 1024, 0, 3}, d[6] = {14, 0, 1024, 512, 0, 3}; /* bf16, 3 at once */
    status[0] = cublasLtMatmul(NULL, desc, NULL, NULL, a, NULL, NULL, NULL, NULL, NULL, NULL, d, NULL, NULL,
                               7, (void *)9);
    status[1] = cublasSgemm_v2(NULL, 0, 1, 64, 32, 16, NULL, NULL, 0, NULL, 0, NULL, NULL, 5);
    status[2] = cublasGemmStridedBatchedEx(NULL, 2, 0, 8, 4, 2, NULL, NULL, 2, 0, 0, NULL, 2, 0, 0, NULL,
                                           NULL, 2, 6, 0, 12, 68, 1);
    status[3] = cudnnBackendExecute(NULL, NULL, NULL);
    return 4;
}
#endif
