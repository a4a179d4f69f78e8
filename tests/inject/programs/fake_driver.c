/* A stand-in for libcuda, of whose contexts one is current, of device 2; streams are of device 1. */
int cuCtxGetCurrent(void **context) { return *context = (void *)1002, 0; }
int cuStreamGetCtx(void *stream, void **context) { return *context = (void *)1001, stream == 0; }
