/* How far apart CPUs 0 and 1 are just now: on a virtual machine that changes, and costs with it. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <rte_pause.h>

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
	if (pthread_setaffinity_np(pthread_self(), sizeof set, &set))
		abort();
}

static _Alignas(128) _Atomic uint64_t ball;
enum { ROUNDS = 3000 };

static void *partner(void *arg)
{
	(void)arg;
	pin(1);
	for (uint64_t r = 0; r < ROUNDS; r++) {
		while (ball != 2 * r + 1)
			rte_pause();
		ball = 2 * r + 2;
	}
	return NULL;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static double one_way(void)
{
	static uint64_t took[ROUNDS];
	pthread_t t;
	ball = 0;
	pthread_create(&t, NULL, partner, NULL);
	for (uint64_t r = 0; r < ROUNDS; r++) {
		uint64_t start = nanos();
		ball = 2 * r + 1;
		while (ball != 2 * r + 2)
			rte_pause();
		took[r] = nanos() - start;
	}
	pthread_join(t, NULL);
	qsort(took, ROUNDS, sizeof *took, by_number);
	return took[ROUNDS / 2] / 2.0;
}

/* Measured 60 ns near and 200 ns far. */
static bool is_far(double one_way_nanos)
{
	return one_way_nanos > 110;
}
