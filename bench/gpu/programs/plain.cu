// A program as nvcc compiles it: the runtime, launches with <<<>>>, copies. NUMBER of launches. Prints a line of JSON.
#include <cstdio>
#include <cstdlib>

__global__ void add_one(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] += 1;
}

int main(int count, char **words)
{
    int number = count > 1 ? atoi(words[1]) : 100, n = 1 << 20, *x, *host = (int *)malloc(n * sizeof(int));
    bool is_right = true;

    if (cudaMalloc(&x, n * sizeof(int)) || cudaMemset(x, 0, n * sizeof(int)))
        return 1;
    for (int i = 0; i < number; i++)
        add_one<<<n / 256, 256>>>(x, n);
    if (cudaMemcpy(host, x, n * sizeof(int), cudaMemcpyDeviceToHost))
        return 1;
    for (int i = 0; i < n; i++)
        is_right = is_right && host[i] == number;
    printf("{\"gated\": %d, \"is_right\": %s}\n", number + 2, is_right ? "true" : "false");
    return 0;
}
