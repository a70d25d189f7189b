/* Prints how many nanoseconds a cache line takes from one CPU to the other: near A B. */
#define _GNU_SOURCE
#include "near.h"

int main(int argc, char **argv)
{
	if (argc != 3 || (rx_cpu = atoi(argv[1])) == (work_cpu = atoi(argv[2]))) {
		fputs("usage: near CPU OTHER_CPU\n", stderr);
		return 2;
	}
	pin(rx_cpu);
	printf("%.0f\n", one_way());
	return 0;
}
