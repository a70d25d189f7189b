/* How far apart the two CPUs are just now: on a virtual machine that changes, and costs with it. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The CPU that receives, and the one that works. */
static int rx_cpu = 0, work_cpu = 1;

static uint64_t nanos(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof set, &set)) {
		fprintf(stderr, "CPU %d: not one that this process may use; choose others by -c\n", cpu);
		exit(1);
	}
}

static _Alignas(128) _Atomic uint64_t ball;
enum { BALLS = 3000 };

static void *partner(void *arg)
{
	(void)arg;
	pin(work_cpu);
	for (uint64_t r = 0; r < BALLS; r++) {
		while (ball != 2 * r + 1)
			__builtin_ia32_pause();
		ball = 2 * r + 2;
	}
	return NULL;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* The median time that a line takes one way, in nanoseconds, from this thread on rx_cpu. */
static double one_way(void)
{
	static uint64_t took[BALLS];
	pthread_t t;
	ball = 0;
	if (pthread_create(&t, NULL, partner, NULL))
		abort();
	for (uint64_t r = 0; r < BALLS; r++) {
		uint64_t start = nanos();
		ball = 2 * r + 1;
		while (ball != 2 * r + 2)
			__builtin_ia32_pause();
		took[r] = nanos() - start;
	}
	pthread_join(t, NULL);
	qsort(took, BALLS, sizeof *took, by_number);
	return took[BALLS / 2] / 2.0;
}
