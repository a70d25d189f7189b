/* What a program was asked for, and what it prints of a run: a Sample of steerage's report, one JSON object a line. */
#pragma once
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "../common/near.h"

enum { WORKS_MAX = 32 };

/* For which machine it is built, behind the name of each series: nothing if for this machine. */
#ifndef BUILT
#define BUILT ""
#endif

static struct {
	const char *experiment; /* of which the runs are */
	int round;
	double seconds; /* of a run, about */
	int works[WORKS_MAX], works_count; /* nanoseconds a packet */
} asked = {"rps", 0, 0.3, {0, 20, 50, 100, 200, 500, 1000, 2000}, 8};

static void usage(void)
{
	fputs("options behind --: [-e EXPERIMENT] [-r ROUND] [-c RECEIVING_CPU,WORKING_CPU] [-t SECONDS_A_RUN] [NANOSECONDS_OF_WORK...]\n",
	      stderr);
	exit(2);
}

/* argv[0] is passed over. */
static void read_options(int argc, char **argv)
{
	optind = 1;
	for (int option; (option = getopt(argc, argv, "e:r:c:t:")) != -1;) {
		if (option == 'e')
			asked.experiment = optarg;
		else if (option == 'r')
			asked.round = atoi(optarg);
		else if (option == 't')
			asked.seconds = atof(optarg);
		else if (option != 'c' || sscanf(optarg, "%d,%d", &rx_cpu, &work_cpu) != 2)
			usage();
	}
	if (asked.round < 0 || !(asked.seconds > 0 && asked.seconds <= 60) || rx_cpu == work_cpu || argc - optind > WORKS_MAX)
		usage();
	if (optind < argc)
		asked.works_count = 0;
	for (; optind < argc; optind++)
		asked.works[asked.works_count++] = atoi(argv[optind]);
}

static bool is_asked(const char *experiment)
{
	return !strcmp(asked.experiment, experiment);
}

struct value {
	const char *name;
	double value; /* NAN: not to be had */
};

/* x: NAN for none. before, after: how far apart the CPUs were, in nanoseconds. lab/page.py decides by the times of all
 * runs what is near and what is far. */
static void print_sample(const char *series, double x, double before, double after, const struct value *values)
{
	printf("{\"experiment\":\"%s\",\"series\":\"%s" BUILT "\",", asked.experiment, series);
	printf(isnan(x) ? "\"x\":null," : "\"x\":%.1f,", x);
	printf("\"round\":%d,\"apart_ns\":[%.1f,%.1f],\"values\":{", asked.round, before, after);
	for (const char *comma = ""; values->name; values++) {
		if (isnan(values->value))
			continue;
		printf("%s\"%s\":%.4f", comma, values->name, values->value);
		comma = ",";
	}
	puts("}}");
	fflush(stdout);
}
