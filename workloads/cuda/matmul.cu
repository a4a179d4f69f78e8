// A matrix product C = A B three ways: a thread for every element, a tile in shared memory, and a
// tile with four rows of results a thread. Each is timed with events and checked on the host.
//
// usage: matmul [SIZE]   SIZE is a multiple of 32, 1024 by default

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t status = (call);                                                      \
        if (status != cudaSuccess) {                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));               \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

constexpr int TILE = 32;
constexpr int ROWS = 4;
constexpr int PASSES = 10;

__global__ void matmul_plain(const float *a, const float *b, float *c, int n) {
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k)
        sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

__global__ void matmul_tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + first + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; ++k)
            sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

__global__ void matmul_blocked(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int column = blockIdx.x * TILE + threadIdx.x;
    float sums[ROWS] = {};
    for (int first = 0; first < n; first += TILE) {
        for (int i = 0; i < ROWS; ++i) {
            int y = threadIdx.y * ROWS + i;
            left[y][threadIdx.x] = a[(blockIdx.y * TILE + y) * n + first + threadIdx.x];
            right[y][threadIdx.x] = b[(first + y) * n + column];
        }
        __syncthreads();
        for (int k = 0; k < TILE; ++k) {
            float value = right[k][threadIdx.x];
            for (int i = 0; i < ROWS; ++i)
                sums[i] += left[threadIdx.y * ROWS + i][k] * value;
        }
        __syncthreads();
    }
    for (int i = 0; i < ROWS; ++i)
        c[(blockIdx.y * TILE + threadIdx.y * ROWS + i) * n + column] = sums[i];
}

typedef void (*Kernel)(const float *, const float *, float *, int);

static bool measure(const char *name, Kernel kernel, dim3 block, int n, const float *a,
                    const float *b, float *c, const std::vector<float> &host_a,
                    const std::vector<float> &host_b) {
    dim3 grid(n / TILE, n / TILE);
    cudaEvent_t before, after;
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    kernel<<<grid, block>>>(a, b, c, n);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(before));
    for (int pass = 0; pass < PASSES; ++pass)
        kernel<<<grid, block>>>(a, b, c, n);
    CHECK(cudaEventRecord(after));
    CHECK(cudaEventSynchronize(after));
    float ms = 0.0f;
    CHECK(cudaEventElapsedTime(&ms, before, after));
    ms /= PASSES;

    std::vector<float> result((size_t)n * n);
    CHECK(cudaMemcpy(result.data(), c, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int sample = 0; sample < 64; ++sample) {
        int row = (sample * 37) % n, column = (sample * 101) % n;
        double exact = 0.0;
        for (int k = 0; k < n; ++k)
            exact += (double)host_a[(size_t)row * n + k] * host_b[(size_t)k * n + column];
        right &= std::fabs(result[(size_t)row * n + column] - exact) <= 1e-3 * std::sqrt((double)n);
    }
    printf("%s_ms=%.4f\n%s_flops_per_s=%.4g\n%s_right=%d\n", name, ms, name,
           2.0 * n * n * n / ms * 1e3, name, right);
    CHECK(cudaEventDestroy(before));
    CHECK(cudaEventDestroy(after));
    return right;
}

int main(int count, char **words) {
    int n = count > 1 ? atoi(words[1]) : 1024;
    if (n < TILE || n > 32768 || n % TILE) {
        fprintf(stderr, "SIZE must be a multiple of %d from %d to 32768\n", TILE, TILE);
        return 2;
    }
    size_t elements = (size_t)n * n, bytes = elements * sizeof(float);
    std::vector<float> host_a(elements), host_b(elements);
    unsigned state = 1;
    for (size_t i = 0; i < elements; ++i) {
        state = state * 1664525u + 1013904223u;
        host_a[i] = (state >> 8) / 16777216.0f - 0.5f;
        state = state * 1664525u + 1013904223u;
        host_b[i] = (state >> 8) / 16777216.0f - 0.5f;
    }
    float *a, *b, *c;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&c, bytes));
    CHECK(cudaMemcpy(a, host_a.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, host_b.data(), bytes, cudaMemcpyHostToDevice));
    printf("size=%d\n", n);
    bool right = measure("plain", matmul_plain, dim3(TILE, TILE), n, a, b, c, host_a, host_b);
    right &= measure("tiled", matmul_tiled, dim3(TILE, TILE), n, a, b, c, host_a, host_b);
    right &= measure("blocked", matmul_blocked, dim3(TILE, TILE / ROWS), n, a, b, c, host_a, host_b);
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFree(c));
    return right ? 0 : 1;
}
