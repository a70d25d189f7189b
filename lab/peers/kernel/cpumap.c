/* The kernel's steering by XDP: a program at an interface hashes each packet's addresses and ports and hands it to a CPU by a CPUMAP.
 *
 *   cpumap IFACE pass|drop CPU[,CPU...]
 *
 * pass: the kernel goes on with it on that CPU, as with RPS. drop: a second program, on that CPU, reads the headers, counts and drops. Until
 * SIGTERM or SIGINT; then it tells what it got. The program goes away with this process, whatever ends it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A queue of 2048 is what the kernel's own xdp_redirect_cpu takes. */
enum { QUEUE = 2048, CPUS_MAX = 16, CPU_MAX = 1024, CODE_MAX = 128, LOG_BYTES = 1 << 16 };

/* Places in the map of counters, of each CPU. */
enum { RECEIVED, HANDLED, COUNTERS };

static void fail(const char *what)
{
	fprintf(stderr, "cpumap: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int bpf(enum bpf_cmd command, union bpf_attr *attr, const char *what)
{
	int fd = syscall(__NR_bpf, command, attr, sizeof *attr);
	if (fd < 0)
		fail(what);
	return fd;
}

static int new_map(enum bpf_map_type type, unsigned value_size, unsigned entries)
{
	union bpf_attr attr = {.map_type = type, .key_size = 4, .value_size = value_size, .max_entries = entries};
	return bpf(BPF_MAP_CREATE, &attr, "a BPF map: it takes CAP_BPF and CAP_NET_ADMIN");
}

/* ---- programs, as instructions */

enum { R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP };

struct code {
	struct bpf_insn at[CODE_MAX];
	int count;
};

static int put(struct code *code, uint8_t op, uint8_t to, uint8_t from, int16_t offset, int32_t number)
{
	if (code->count == CODE_MAX)
		abort();
	code->at[code->count] = (struct bpf_insn){.code = op, .dst_reg = to, .src_reg = from, .off = offset, .imm = number};
	return code->count++;
}

static void set(struct code *c, int to, int32_t number) { put(c, BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, number); }
static void copy(struct code *c, int to, int from) { put(c, BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
static void number(struct code *c, int op, int to, int32_t by) { put(c, BPF_ALU64 | op | BPF_K, to, 0, 0, by); }
static void combine(struct code *c, int op, int to, int from) { put(c, BPF_ALU64 | op | BPF_X, to, from, 0, 0); }
static void load(struct code *c, int size, int to, int from, int at) { put(c, BPF_LDX | BPF_MEM | size, to, from, at, 0); }
static void call(struct code *c, int function) { put(c, BPF_JMP | BPF_CALL, 0, 0, 0, function); }

static void wide(struct code *c, int to, int kind, uint64_t value)
{
	put(c, BPF_LD | BPF_DW | BPF_IMM, to, kind, 0, (int32_t)value);
	put(c, 0, 0, 0, 0, (int32_t)(value >> 32));
}

/* Returns the jump, to be led to where it goes by `here`. */
static int jump_if(struct code *c, int when, int left, int32_t right) { return put(c, BPF_JMP | when | BPF_K, left, 0, 0, right); }
static int jump_if_above(struct code *c, int left, int right) { return put(c, BPF_JMP | BPF_JGT | BPF_X, left, right, 0, 0); }
static void here(struct code *c, int jump) { c->at[jump].off = c->count - jump - 1; }

/* Counts a packet. Spoils R0 to R5. */
static void count(struct code *c, int counters, int counter)
{
	put(c, BPF_ST | BPF_MEM | BPF_W, FP, 0, -4, counter);
	wide(c, R1, BPF_PSEUDO_MAP_FD, counters);
	copy(c, R2, FP);
	number(c, BPF_ADD, R2, -4);
	call(c, BPF_FUNC_map_lookup_elem);
	int none = jump_if(c, BPF_JEQ, R0, 0);
	load(c, BPF_DW, R1, R0, 0);
	number(c, BPF_ADD, R1, 1);
	put(c, BPF_STX | BPF_MEM | BPF_DW, R0, R1, 0, 0);
	here(c, none);
}

/* R7 is the frame, R8 its end. Notes the jumps that are taken if it is no IPv4 with ports. */
static void read_frame(struct code *c, int *too_short, int *other)
{
	load(c, BPF_W, R7, R1, offsetof(struct xdp_md, data));
	load(c, BPF_W, R8, R1, offsetof(struct xdp_md, data_end));
	copy(c, R2, R7);
	number(c, BPF_ADD, R2, 38);
	*too_short = jump_if_above(c, R2, R8);
	load(c, BPF_H, R3, R7, 12);
	*other = jump_if(c, BPF_JNE, R3, htons(ETH_P_IP));
}

static void leave(struct code *c, int action)
{
	set(c, R0, action);
	put(c, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
}

/* At the interface. */
static struct code choosing(int cpumap, int counters, const int *cpus, int cpu_count)
{
	struct code c = {0};
	int too_short, other;
	read_frame(&c, &too_short, &other);
	count(&c, counters, RECEIVED);
	/* The top of a product depends on all of the addresses and ports. */
	load(&c, BPF_W, R3, R7, 26);
	load(&c, BPF_W, R4, R7, 34);
	number(&c, BPF_LSH, R3, 32);
	combine(&c, BPF_OR, R3, R4);
	load(&c, BPF_W, R4, R7, 30);
	combine(&c, BPF_XOR, R3, R4);
	wide(&c, R4, 0, 0x9E3779B97F4A7C15ull);
	combine(&c, BPF_MUL, R3, R4);
	number(&c, BPF_RSH, R3, 32);
	number(&c, BPF_MUL, R3, cpu_count);
	number(&c, BPF_RSH, R3, 32);
	set(&c, R2, cpus[0]);
	for (int i = 1; i < cpu_count; i++) {
		int chosen = jump_if(&c, BPF_JLT, R3, i);
		set(&c, R2, cpus[i]);
		here(&c, chosen);
	}
	wide(&c, R1, BPF_PSEUDO_MAP_FD, cpumap);
	set(&c, R3, XDP_PASS);
	call(&c, BPF_FUNC_redirect_map);
	put(&c, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	here(&c, too_short);
	here(&c, other);
	leave(&c, XDP_PASS);
	return c;
}

/* On the CPU that was chosen: what it reads is what receive.c of af_packet does. */
static struct code dropping(int counters)
{
	struct code c = {0};
	int too_short, other;
	read_frame(&c, &too_short, &other);
	load(&c, BPF_W, R3, R7, 26);
	load(&c, BPF_W, R4, R7, 30);
	combine(&c, BPF_XOR, R3, R4);
	count(&c, counters, HANDLED);
	here(&c, too_short);
	here(&c, other);
	leave(&c, XDP_DROP);
	return c;
}

static int load_program(struct code *code, enum bpf_attach_type type)
{
	static char log[LOG_BYTES];
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.expected_attach_type = type,
		/* Else none can be attached where the MTU is more than a page; the headers lie in the first buffer. */
		.prog_flags = BPF_F_XDP_HAS_FRAGS,
		.insns = (uintptr_t)code->at,
		.insn_cnt = code->count,
		.license = (uintptr_t)"Dual MIT/GPL",
		.log_buf = (uintptr_t)log,
		.log_size = sizeof log,
		.log_level = 1,
	};
	int fd = syscall(__NR_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
	if (fd < 0) {
		fputs(log, stderr);
		fail("the XDP program");
	}
	return fd;
}

/* ---- */

static uint64_t total(int counters, uint32_t counter)
{
	/* The kernel fills in one for each CPU that the machine could have. */
	static uint64_t each[CPU_MAX];
	union bpf_attr attr = {.map_fd = counters, .key = (uintptr_t)&counter, .value = (uintptr_t)each};
	uint64_t sum = 0;
	bpf(BPF_MAP_LOOKUP_ELEM, &attr, "reading the counters");
	for (int i = 0; i < CPU_MAX; i++)
		sum += each[i];
	return sum;
}

/* The kernel's threads of the map get the priority that this process has: or whoever sends at a higher one starves them. */
static void raise_threads(int cpumap)
{
	struct bpf_map_info info = {0};
	union bpf_attr attr = {.info = {.bpf_fd = cpumap, .info_len = sizeof info, .info = (uintptr_t)&info}};
	bpf(BPF_OBJ_GET_INFO_BY_FD, &attr, "the CPUMAP's number");
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	while (processes && (entry = readdir(processes))) {
		char path[300];
		int cpu, id;
		snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
		FILE *name = atoi(entry->d_name) ? fopen(path, "r") : NULL;
		if (!name)
			continue;
		if (fscanf(name, "cpumap/%d/map:%d", &cpu, &id) == 2 && id == (int)info.id &&
		    setpriority(PRIO_PROCESS, atoi(entry->d_name), getpriority(PRIO_PROCESS, 0)))
			perror("cpumap: the priority of a kernel thread");
		fclose(name);
	}
	if (processes)
		closedir(processes);
}

static int cpu_list(char *text, int *cpus)
{
	int count = 0;
	for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
		if (count == CPUS_MAX || (cpus[count] = atoi(word)) < 0 || cpus[count] >= CPU_MAX)
			return 0;
		count++;
	}
	return count;
}

int main(int argc, char **argv)
{
	int cpus[CPUS_MAX], cpu_count = argc == 4 ? cpu_list(argv[3], cpus) : 0;
	if (!cpu_count || (strcmp(argv[2], "pass") && strcmp(argv[2], "drop"))) {
		fprintf(stderr, "usage: cpumap IFACE pass|drop CPU[,CPU...], at most %d CPUs\n", CPUS_MAX);
		return 2;
	}
	int drops = !strcmp(argv[2], "drop"), interface = if_nametoindex(argv[1]);
	if (!interface)
		fail(argv[1]);
	if (sysconf(_SC_NPROCESSORS_CONF) > CPU_MAX) {
		fprintf(stderr, "cpumap: the machine has more than %d CPUs: raise CPU_MAX\n", CPU_MAX);
		return 1;
	}
	sigset_t ends;
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sigprocmask(SIG_BLOCK, &ends, NULL);

	int last = 0;
	for (int i = 0; i < cpu_count; i++)
		last = cpus[i] > last ? cpus[i] : last;
	int counters = new_map(BPF_MAP_TYPE_PERCPU_ARRAY, 8, COUNTERS);
	/* The key is the CPU's number, and the kernel wants no more entries than it could have CPUs. */
	int cpumap = new_map(BPF_MAP_TYPE_CPUMAP, sizeof(struct bpf_cpumap_val), last + 1);
	struct bpf_cpumap_val value = {.qsize = QUEUE};
	if (drops) {
		struct code code = dropping(counters);
		value.bpf_prog.fd = load_program(&code, BPF_XDP_CPUMAP);
	}
	for (int i = 0; i < cpu_count; i++) {
		union bpf_attr attr = {.map_fd = cpumap, .key = (uintptr_t)&cpus[i], .value = (uintptr_t)&value};
		bpf(BPF_MAP_UPDATE_ELEM, &attr, "a CPU of the CPUMAP: is it online");
	}
	raise_threads(cpumap);
	struct code code = choosing(cpumap, counters, cpus, cpu_count);
	union bpf_attr attr = {.link_create = {
		.prog_fd = load_program(&code, BPF_XDP),
		.target_ifindex = interface,
		.attach_type = BPF_XDP,
		.flags = XDP_FLAGS_DRV_MODE,
	}};
	bpf(BPF_LINK_CREATE, &attr, "attaching to the interface");
	puts("ready");
	fflush(stdout);

	int signal;
	sigwait(&ends, &signal);
	uint64_t received = total(counters, RECEIVED), handled = drops ? total(counters, HANDLED) : received;
	printf("received %llu dropped %llu\n", (unsigned long long)handled, (unsigned long long)(received - handled));
	return 0;
}
