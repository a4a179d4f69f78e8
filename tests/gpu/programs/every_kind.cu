/* One of each thing that CUPTI reports, in known numbers, each in a range of its own.
 *
 *     every_kind
 *
 * kernels: 100 on each of two streams; graph: 20 launches of 5 kernels; copies: 30 each way from
 * pageable memory and 20 each way from pinned; memsets: 40; allocations: 10, freed again.
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <nvtx3/nvToolsExt.h>

static const size_t SIZE = 1 << 16;

__global__ void work(float *at) { at[threadIdx.x] += 1.0f; }

static void check(cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    std::fprintf(stderr, "every_kind: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

static void copy(float *device, float *host, int times)
{
    for (int number = 0; number < times; number++) {
        check(cudaMemcpy(device, host, SIZE, cudaMemcpyHostToDevice));
        check(cudaMemcpy(host, device, SIZE, cudaMemcpyDeviceToHost));
    }
}

static void replay(float *device, cudaStream_t stream)
{
    cudaGraph_t recorded;
    cudaGraphExec_t ready;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int node = 0; node < 5; node++)
        work<<<1, 128, 0, stream>>>(device);
    check(cudaStreamEndCapture(stream, &recorded));
    check(cudaGraphInstantiate(&ready, recorded, 0));
    for (int launch = 0; launch < 20; launch++)
        check(cudaGraphLaunch(ready, stream));
    check(cudaStreamSynchronize(stream));
}

int main()
{
    float *device, *pinned;
    std::vector<float> pageable(SIZE / sizeof(float));
    cudaStream_t streams[2];
    check(cudaMalloc(&device, SIZE));
    check(cudaMallocHost(&pinned, SIZE));
    for (cudaStream_t &stream : streams)
        check(cudaStreamCreate(&stream));

    nvtxRangePushA("kernels");
    for (int launch = 0; launch < 200; launch++)
        work<<<1, 128, 0, streams[launch % 2]>>>(device);
    nvtxRangePop();
    check(cudaDeviceSynchronize());

    nvtxRangePushA("graph");
    replay(device, streams[0]);
    nvtxRangePop();

    nvtxRangePushA("copies");
    copy(device, pageable.data(), 30);
    copy(device, pinned, 20);
    nvtxRangePop();

    nvtxRangePushA("memsets");
    for (int number = 0; number < 40; number++)
        check(cudaMemsetAsync(device, number, SIZE, streams[0]));
    nvtxRangePop();
    check(cudaDeviceSynchronize());

    nvtxRangePushA("allocations");
    for (int number = 0; number < 10; number++) {
        float *more;
        check(cudaMalloc(&more, SIZE));
        check(cudaFree(more));
    }
    nvtxRangePop();
    return 0;
}
