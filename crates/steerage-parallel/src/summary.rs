use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use steerage::Snapshot;
use steerage::stats::{DropReason, Drops};
use steerage_text::{counted, grouped, percent, size, time};

use super::job::Job;

/// If the jobs waited for input for at least this share of their time, the verdict mentions the
/// waiting.
const WAITING_MUCH: f64 = 0.5;
/// If all jobs together used fewer CPUs than this on average, the verdict is that splitting the
/// packets gained nothing.
const PAID_FROM: f64 = 1.2;

/// The results of a run. As text, the results are a table of the jobs, a line for the whole run,
/// and the verdict. docs/parallel.md describes the JSON form.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The results of the jobs, in the order of the jobs' numbers.
    pub jobs: Vec<JobSummary>,
    /// The number of packets that were received.
    pub packets: u64,
    /// The number of packets that jobs have read.
    pub delivered: u64,
    /// The number of packets that jobs should have got, but did not get.
    pub lost: u64,
    /// The number of packets that were lost before they were assigned to a job, because a live
    /// input was too fast.
    pub missed: u64,
    /// The number of packets that the filter (`-f`) removed, and that no other count includes.
    pub filtered: u64,
    /// The duration of the whole run in seconds.
    pub seconds: f64,
    /// The CPU time in seconds that this program itself used to read and split packets.
    pub split_cpu_seconds: f64,
    /// The CPU time in seconds that this program itself used to merge the jobs' output.
    pub merge_cpu_seconds: f64,
    /// The CPU time of all jobs in seconds.
    pub jobs_cpu_seconds: f64,
    /// The number of jobs that failed, or did not get all of their packets.
    pub failed: u64,
    /// A sentence that says whether splitting the packets was worthwhile.
    pub verdict: String,
}

/// The results of one job.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct JobSummary {
    /// The number of the job, from 1.
    pub job: usize,
    /// The number of packets that the job has read.
    pub packets: u64,
    /// The number of bytes in the packets that the job has read.
    pub bytes: u64,
    /// For each reason, the number of packets that the job should have got but did not get.
    pub lost: Lost,
    /// The job's exit status. `None` if a signal ended the job, if the job did not run, or if this
    /// process ignores SIGCHLD.
    pub exit_status: Option<i32>,
    /// The name of the signal that ended the job, if a signal ended it.
    pub signal: Option<&'static str>,
    /// The CPU time of the job in seconds.
    pub cpu_seconds: f64,
    /// The time in seconds during which the job's input was open.
    pub fed_seconds: f64,
    /// The part of the time `fed_seconds` in which the job's input was empty.
    pub waited_seconds: f64,
    /// The time from the start of the job to its end, in seconds.
    pub seconds: f64,
    /// The last line that the job wrote to standard error.
    pub last_stderr_line: Option<String>,
    /// The reason why the job did not get all of its packets, or `None` if it got all packets.
    pub incomplete: Option<String>,
    /// True if the job failed, or did not get all of its packets.
    #[serde(skip)]
    pub failed: bool,
}

/// The number of packets that were lost for a job, by drop reason.
#[derive(Clone, Copy, Debug)]
pub struct Lost(Drops);

impl Lost {
    pub(super) fn of_output(snapshot: &Snapshot, nth: usize) -> Self {
        Self(snapshot.outputs.get(nth).map_or_else(Drops::default, |output| output.dropped))
    }

    /// Returns the number of lost packets, summed over all reasons.
    pub fn total(&self) -> u64 {
        self.0.total()
    }

    /// Returns each drop reason for which packets were lost, and the number of these packets.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.0.iter()
    }
}

impl Serialize for Lost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(DropReason::OF_OUTPUTS.map(|reason| (reason.name(), self.0.get(reason))))
    }
}

impl JobSummary {
    pub(super) fn of(
        job: &Job,
        (snapshot, nth, lost): (&Snapshot, usize, Lost),
        last_line: Option<String>,
        (incomplete, failed): (Option<String>, bool),
    ) -> Self {
        let output = snapshot.outputs.get(nth);
        let lived = job.ended.zip(job.started).map_or(Duration::ZERO, |(ended, started)| ended.at - started);
        Self {
            job: job.number,
            packets: output.map_or(0, |output| output.packets),
            bytes: output.map_or(0, |output| output.bytes),
            lost,
            exit_status: job.ended.and_then(|ended| ended.code()),
            signal: job.ended.and_then(|ended| ended.signal()),
            cpu_seconds: job.ended.map_or(0.0, |ended| ended.cpu.as_secs_f64()),
            fed_seconds: job.watched.fed.as_secs_f64(),
            waited_seconds: job.watched.waited.as_secs_f64(),
            seconds: lived.as_secs_f64(),
            last_stderr_line: last_line,
            incomplete,
            failed,
        }
    }

    fn how_it_ended(&self) -> String {
        match (self.exit_status, self.signal) {
            (Some(status), _) => status.to_string(),
            (None, Some(signal)) => signal.to_owned(),
            (None, None) if self.seconds > 0.0 => "unknown".to_owned(),
            (None, None) => "not run".to_owned(),
        }
    }
}

impl Summary {
    pub(super) fn new(
        jobs: Vec<JobSummary>,
        snapshot: &Snapshot,
        filtered: u64,
        elapsed: Duration,
        (split_cpu, merge_cpu): (Duration, Duration),
    ) -> Self {
        let (seconds, cpu) = (elapsed.as_secs_f64(), jobs.iter().map(|job| job.cpu_seconds).sum());
        let sum = |of: fn(&JobSummary) -> f64| jobs.iter().map(of).sum::<f64>();
        let failed = jobs.iter().filter(|job| job.failed).count();
        let waiting = (sum(|job| job.waited_seconds), sum(|job| job.fed_seconds));
        let verdict = match failed == jobs.len() {
            true => "all jobs failed, so their speed says nothing".to_owned(),
            false => verdict(jobs.len(), waiting, cpu, seconds),
        };
        let lost = jobs.iter().map(|job| job.lost.total()).sum();
        Self {
            packets: snapshot.received(),
            delivered: jobs.iter().map(|job| job.packets).sum(),
            lost,
            missed: snapshot.dropped().total().saturating_sub(lost),
            filtered,
            seconds,
            split_cpu_seconds: split_cpu.as_secs_f64(),
            merge_cpu_seconds: merge_cpu.as_secs_f64(),
            jobs_cpu_seconds: cpu,
            failed: failed as u64,
            verdict,
            jobs,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, " job       packets      bytes        lost     exit       CPU  waited")?;
        for job in &self.jobs {
            writeln!(
                f,
                "{:>4} {:>13} {:>10} {:>11} {:>8} {:>9} {:>5.0} %",
                job.job,
                grouped(job.packets),
                size(job.bytes),
                grouped(job.lost.total()),
                job.how_it_ended(),
                time(Duration::from_secs_f64(job.cpu_seconds)),
                percent(job.waited_seconds, job.fed_seconds),
            )?;
        }
        let filtered = match self.filtered {
            0 => String::new(),
            packets => format!(", {} taken out by -f", grouped(packets)),
        };
        let all = self.split_cpu_seconds + self.merge_cpu_seconds + self.jobs_cpu_seconds;
        let (split, merge) = (percent(self.split_cpu_seconds, all), percent(self.merge_cpu_seconds, all));
        writeln!(
            f,
            "{} in {}, {} read by the jobs, {} lost, {} missed{filtered}; splitting took {split:.1} % of the CPU time, merging {merge:.1} %",
            counted(self.packets, "packet"),
            time(Duration::from_secs_f64(self.seconds)),
            grouped(self.delivered),
            grouped(self.lost),
            grouped(self.missed),
        )?;
        writeln!(f, "{}", self.verdict)
    }
}

fn verdict(jobs: usize, (waited, fed): (f64, f64), cpu: f64, seconds: f64) -> String {
    let used = if seconds > 0.0 { cpu / seconds } else { 0.0 };
    let waiting = if fed > 0.0 { waited / fed } else { 0.0 };
    let busy = ((1.0 - waiting) * jobs as f64).ceil().max(1.0) as usize;
    if jobs > 1 && waiting >= WAITING_MUCH && busy < jobs {
        let would_do = if busy == 1 { "one job would do".to_owned() } else { format!("{busy} jobs would do") };
        return format!("the jobs waited for input {:.0} % of their time: {would_do}", waiting * 100.0);
    }
    if jobs > 1 && used < PAID_FROM {
        return format!("the jobs used {used:.1} CPUs: one job would have been about as fast");
    }
    format!("the jobs used {used:.1} CPUs: about {:.1} times as fast as one job", used.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_whether_it_paid() {
        assert_eq!(
            verdict(8, (64.0, 80.0), 5.0, 10.0),
            "the jobs waited for input 80 % of their time: 2 jobs would do"
        );
        assert_eq!(
            verdict(4, (36.0, 40.0), 5.0, 10.0),
            "the jobs waited for input 90 % of their time: one job would do"
        );
        assert_eq!(verdict(2, (1.0, 20.0), 19.0, 10.0), "the jobs used 1.9 CPUs: about 1.9 times as fast as one job");
        assert_eq!(verdict(2, (1.0, 20.0), 9.0, 10.0), "the jobs used 0.9 CPUs: one job would have been about as fast");
        assert_eq!(verdict(1, (1.0, 10.0), 9.0, 10.0), "the jobs used 0.9 CPUs: about 1.0 times as fast as one job");
        assert_eq!(verdict(2, (0.0, 0.0), 0.0, 0.0), "the jobs used 0.0 CPUs: one job would have been about as fast");
    }
}
