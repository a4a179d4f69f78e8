/* Launches empty kernels as fast as asked, or as it can, and says how many a second it managed.
 *
 *     launches loop RATE SECONDS          one by one, RATE a second; 0: as fast as it can
 *     launches graph NODES SECONDS        a CUDA graph of NODES kernels, waited for each time
 *     launches streams COUNT LAUNCHES     LAUNCHES kernels, in turn on COUNT streams
 *
 * Prints the kernels that were timed, the seconds they took, from the first launch to the last end,
 * and how many ran in all: a GPU that was idle takes a while to come up to its clocks.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using Clock = std::chrono::steady_clock;

static const double WARMUP_S = 0.2;

__global__ void empty() {}

static void check(cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    std::fprintf(stderr, "launches: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

static double since(Clock::time_point began)
{
    return std::chrono::duration<double>(Clock::now() - began).count();
}

static long loop(double rate, double seconds)
{
    const Clock::time_point began = Clock::now();
    long count = 0;
    for (;;) {
        /* The clock is asked once for a few launches where they come without a pause. */
        if (rate > 0 || count % 64 == 0) {
            double now = since(began);
            if (now >= seconds)
                break;
            while (rate > 0 && now < (double)count / rate)
                now = since(began);
        }
        empty<<<1, 1>>>();
        count++;
    }
    return count;
}

static long graph(int nodes, double seconds)
{
    cudaStream_t stream;
    cudaGraph_t recorded;
    cudaGraphExec_t ready;
    long count = 0;
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int node = 0; node < nodes; node++)
        empty<<<1, 1, 0, stream>>>();
    check(cudaStreamEndCapture(stream, &recorded));
    check(cudaGraphInstantiate(&ready, recorded, 0));
    check(cudaGraphLaunch(ready, stream));
    check(cudaStreamSynchronize(stream));
    for (const Clock::time_point began = Clock::now(); since(began) < seconds; count += nodes) {
        check(cudaGraphLaunch(ready, stream));
        check(cudaStreamSynchronize(stream));
    }
    return count;
}

static long streams(int many, long launches)
{
    std::vector<cudaStream_t> all(many);
    for (cudaStream_t &stream : all)
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (long launch = 0; launch < launches; launch++)
        empty<<<1, 1, 0, all[launch % many]>>>();
    return launches;
}

int main(int arguments, char **words)
{
    if (arguments != 4)
        return 2;
    const char *mode = words[1];
    const double first = std::atof(words[2]), second = std::atof(words[3]);
    const long before = loop(0, WARMUP_S);
    check(cudaDeviceSynchronize());
    const Clock::time_point began = Clock::now();
    long count = 0;
    if (std::strcmp(mode, "loop") == 0)
        count = loop(first, second);
    else if (std::strcmp(mode, "graph") == 0)
        count = graph((int)first, second);
    else if (std::strcmp(mode, "streams") == 0)
        count = streams((int)first, (long)second);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    const double seconds = since(began);
    const long warm_graph = std::strcmp(mode, "graph") == 0 ? (long)first : 0;
    std::printf("%ld kernels %.6f s %ld\n", count, seconds, before + warm_graph + count);
    return 0;
}
