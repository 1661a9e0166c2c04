//! The processes that are started for a run: one server, or the nodes of a cluster and the broker between them.
//!
//! A process keeps its name and its address when it is killed and started again, and its account goes on.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use tidewire::{Endpoint, History};
use tidewire_load::lane_account::LaneAccount;
use tidewire_load::plan::ServerProcess;
use tidewire_load::process::ProcessSample;
use tidewire_load::scenario::{BACKPLANE_NAME, FaultAction, history_limits, node_name};

use super::child::{NatsOptions, RunDirectory, Running, ServerOptions, lock};
use crate::failure::Failure;

/// The servers of a run. Dropping it kills what still runs.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The nodes, and after them the broker, if it is ours.
    members: Vec<Arc<Member>>,
}

impl Cluster {
    /// Starts a server for each of these settings, and before them a broker, if `backplane` asks for one or names one.
    /// All servers keep these histories of all rooms.
    pub(crate) fn start(
        servers: Vec<ServerOptions>,
        backplane: Option<&str>,
        history: Option<&History>,
    ) -> anyhow::Result<Self> {
        let mut cluster = Self::default();
        let mut flags = Vec::new();
        let mut broker = None;
        if let Some(backplane) = backplane {
            let mut address = backplane.to_owned();
            if backplane == BACKPLANE_NAME {
                let options = NatsOptions {
                    program: nats_server()?,
                    port: 0,
                    store: history
                        .map(|_| RunDirectory::create())
                        .transpose()?
                        .map(Arc::new),
                };
                let member = Member::start(BACKPLANE_NAME.to_owned(), Program::Nats(options))?;
                address = member.address();
                broker = Some(Arc::new(member));
            }
            // Runs that share a broker must not meet.
            let prefix = format!("load-{:08x}", fastrand::u32(..));
            flags = ["--backplane", &address, "--backplane-prefix", &prefix]
                .map(str::to_owned)
                .into();
        }
        if let Some(history) = history {
            let kept = format!(">,{}", history_limits(history));
            flags.extend(["--history".to_owned(), kept]);
        }
        for (number, mut options) in (1..).zip(servers) {
            options.flags.clone_from(&flags);
            if backplane.is_some() {
                options
                    .flags
                    .extend(["--node".to_owned(), format!("node-{number}")]);
            }
            let member = Member::start(node_name(number), Program::Server(options))?;
            cluster.members.push(Arc::new(member));
        }
        cluster.members.extend(broker);
        Ok(cluster)
    }

    /// The addresses of the servers.
    pub(crate) fn targets(&self) -> anyhow::Result<Vec<Endpoint>> {
        let servers = self.members.iter().filter(|it| it.name != BACKPLANE_NAME);
        let addresses = servers.map(|server| server.address());
        let resolve =
            |address: String| Ok(address.parse::<tidewire::address::Address>()?.resolve()?);
        addresses.map(resolve).collect()
    }

    pub(crate) fn processes(&self) -> Vec<Arc<dyn ServerProcess>> {
        let members = self.members.iter().cloned();
        members
            .map(|member| member as Arc<dyn ServerProcess>)
            .collect()
    }

    /// Lets all of them end, the nodes before their broker.
    pub(crate) fn stop(self) {
        let is_broker = |member: &Arc<Member>| member.name == BACKPLANE_NAME;
        let (brokers, nodes): (Vec<_>, Vec<_>) = self.members.into_iter().partition(is_broker);
        for members in [nodes, brokers] {
            let running = members
                .iter()
                .filter_map(|it| lock(&it.state).running.take());
            let running: Vec<Running> = running.collect();
            running.iter().for_each(Running::close);
            running.into_iter().for_each(Running::wait);
        }
    }
}

/// A process with a name.
#[derive(Debug)]
struct Member {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    running: Option<Running>,
    /// The program, with the address that it got at its first start. It has the directories of what runs, which must
    /// end before them.
    program: Program,
    /// The use of the processes that have ended.
    ended: ProcessSample,
    /// How often it was started again.
    restarts: u32,
    /// One of its processes has ended although nothing ended it.
    has_failed: bool,
}

#[derive(Clone, Debug)]
enum Program {
    Server(ServerOptions),
    Nats(NatsOptions),
}

impl Program {
    fn start(&self) -> anyhow::Result<Running> {
        match self {
            Self::Server(options) => Running::server(options),
            Self::Nats(options) => Running::nats(options),
        }
    }

    /// Lets later starts use the same address.
    fn stay_at(&mut self, address: &str) {
        match self {
            Self::Server(options) => address.clone_into(&mut options.bind),
            Self::Nats(options) => {
                let text = address.rsplit_once(':').map(|(_, port)| port);
                let port = text.and_then(|port| port.parse().ok());
                options.port = port.unwrap_or(options.port);
            }
        }
    }
}

impl Member {
    fn start(name: String, mut program: Program) -> anyhow::Result<Self> {
        let running = program.start()?;
        program.stay_at(running.address());
        let state = State {
            program,
            running: Some(running),
            ended: ProcessSample::default(),
            restarts: 0,
            has_failed: false,
        };
        Ok(Self {
            name,
            state: Mutex::new(state),
        })
    }

    fn address(&self) -> String {
        let state = lock(&self.state);
        let address = state.running.as_ref().map(Running::address);
        address.unwrap_or_default().to_owned()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let mut state = lock(&self.state);
        let running = state.running()?;
        running.signal(signal).map_err(|error| error.to_string())
    }
}

impl State {
    fn usage(&self) -> Option<ProcessSample> {
        match &self.running {
            Some(running) => Some(ProcessSample::of(running.pid()).ok()?.after(&self.ended)),
            None => Some(self.ended),
        }
    }

    /// Notes whether it has ended although nothing ended it.
    fn look(&mut self) -> bool {
        self.has_failed |= self.running.as_ref().is_some_and(Running::has_ended);
        self.has_failed
    }

    /// The process, if it runs.
    fn running(&mut self) -> Result<&Running, &'static str> {
        self.look();
        let running = self.running.as_ref().ok_or("it does not run")?;
        match running.has_ended() {
            true => Err("it has ended by itself"),
            false => Ok(running),
        }
    }

    /// Kills it, and keeps its account.
    fn kill(&mut self) {
        self.look();
        self.ended = self.usage().unwrap_or(self.ended);
        self.running = None;
    }
}

impl ServerProcess for Member {
    fn name(&self) -> &str {
        &self.name
    }

    fn usage(&self) -> Option<ProcessSample> {
        lock(&self.state).usage()
    }

    fn lanes(&self) -> Option<LaneAccount> {
        let line = {
            let state = lock(&self.state);
            if let Program::Nats(..) = state.program {
                // It has no lanes, which counts for nothing.
                return Some(LaneAccount {
                    system_calls: 0,
                    allocations: Some(0),
                    allocated_bytes: Some(0),
                });
            }
            // The lanes of the process that was replaced took their account with them.
            state
                .running
                .as_ref()
                .filter(|_| state.restarts == 0)?
                .line()
        };
        lock(&line).ask()
    }

    fn ended_by_itself(&self) -> bool {
        lock(&self.state).look()
    }

    fn inflict(&self, action: FaultAction) -> Result<(), String> {
        match action {
            FaultAction::Stop => self.signal(Signal::STOP),
            FaultAction::Continue => self.signal(Signal::CONT),
            FaultAction::Kill => {
                let mut state = lock(&self.state);
                state.running()?;
                state.kill();
                Ok(())
            }
            FaultAction::Restart => {
                let program = {
                    let mut state = lock(&self.state);
                    state.kill();
                    state.restarts += 1;
                    state.program.clone()
                };
                // The start takes a while, in which the coordinator may ask for the account.
                let running = program.start().map_err(|error| format!("{error:#}"))?;
                lock(&self.state).running = Some(running);
                Ok(())
            }
        }
    }
}

fn nats_server() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(NATS_DIRECTORIES.map(PathBuf::from));
    let mut files = directories.map(|directory| directory.join(NATS_SERVER));
    let found = files.find(|file| file.is_file());
    found.ok_or_else(|| {
        let what = format!("there is no {NATS_SERVER} in the PATH, and none in {}", NATS_DIRECTORIES.join(" or "));
        let remedy = "install it (nats.io), make it with `bench/peers/setup nats`, or name a server with --backplane nats://HOST:PORT";
        Failure::configuration(what, remedy).into()
    })
}

const NATS_SERVER: &str = "nats-server";

/// Where `bench/peers/setup nats` puts it, from the top of the repository.
const NATS_DIRECTORIES: [&str; 2] = ["bench/peers/tools", "bench/peers/bin"];

#[cfg(test)]
mod tests {
    use std::fs;

    use tidewire_testkit::write_script;

    use super::*;

    /// A program that starts like nats-server and notes its arguments.
    fn stand_in(directory: &std::path::Path, listening: &str) -> PathBuf {
        let file = directory.join(NATS_SERVER);
        let script = format!(
            "echo \"$@\" >> {}\n{listening}\nexec sleep 1000\n",
            directory.join("arguments").display()
        );
        write_script(file, &script)
    }

    fn nats(directory: &tempfile::TempDir, listening: &str) -> NatsOptions {
        NatsOptions {
            program: stand_in(directory.path(), listening),
            port: 0,
            store: None,
        }
    }

    fn is_gone(pid: u32) -> bool {
        !fs::exists(format!("/proc/{pid}")).unwrap()
    }

    #[test]
    fn a_broker_keeps_its_address_and_leaves_no_process_behind() {
        let directory = tempfile::tempdir().unwrap();
        let listening = "echo '[1] [INF] Listening for client connections on 127.0.0.1:4333' >&2\n\
                         echo '[1] [INF] Server is ready' >&2";
        let program = Program::Nats(nats(&directory, listening));
        let member = Member::start(BACKPLANE_NAME.to_owned(), program).unwrap();
        assert_eq!(member.address(), "nats://127.0.0.1:4333");
        let pid = |member: &Member| lock(&member.state).running.as_ref().unwrap().pid();
        let first = pid(&member);
        assert!(member.usage().is_some() && member.lanes().is_some());
        member.inflict(FaultAction::Stop).unwrap();
        member.inflict(FaultAction::Kill).unwrap();
        assert!(is_gone(first));
        assert_eq!(
            member.inflict(FaultAction::Continue),
            Err("it does not run".to_owned())
        );
        assert_eq!(
            member.inflict(FaultAction::Kill),
            Err("it does not run".to_owned())
        );
        assert!(member.usage().is_some(), "the account goes on");
        member.inflict(FaultAction::Restart).unwrap();
        let second = pid(&member);
        assert_ne!(first, second);
        let cluster = Cluster {
            members: vec![Arc::new(member)],
        };
        cluster.stop();
        assert!(is_gone(second));
        let arguments = fs::read_to_string(directory.path().join("arguments")).unwrap();
        let expected = ["-1", "4333"].map(|port| format!("--addr 127.0.0.1 --port {port}"));
        assert_eq!(arguments.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_broker_for_histories_keeps_its_streams_over_a_restart_and_leaves_none_behind() {
        let directory = tempfile::tempdir().unwrap();
        let listening = "echo 'Listening for client connections on 127.0.0.1:4335' >&2\n\
                         echo 'Server is ready' >&2";
        let store = Arc::new(RunDirectory::create().unwrap());
        let path = store.path().to_owned();
        let mut options = nats(&directory, listening);
        options.store = Some(store);
        let member = Member::start(BACKPLANE_NAME.to_owned(), Program::Nats(options)).unwrap();
        fs::write(path.join("stream"), "kept").unwrap();
        member.inflict(FaultAction::Restart).unwrap();
        assert!(path.join("stream").exists());
        let arguments = fs::read_to_string(directory.path().join("arguments")).unwrap();
        let expected = format!("--jetstream --store_dir {}", path.display());
        assert!(arguments.lines().all(|line| line.ends_with(&expected)));
        drop(member);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_ends_by_itself_is_noticed_also_behind_the_shell_that_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let listening = "echo 'Listening for client connections on 127.0.0.1:4334' >&2\n\
                         echo 'Server is ready' >&2";
        let program = Program::Nats(nats(&directory, listening));
        let member = Member::start(BACKPLANE_NAME.to_owned(), program).unwrap();
        member.inflict(FaultAction::Kill).unwrap();
        member.inflict(FaultAction::Restart).unwrap();
        assert!(!member.ended_by_itself(), "a fault ended it");
        let pid = lock(&member.state).running.as_ref().unwrap().pid();
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        while !member.ended_by_itself() {
            std::thread::yield_now();
        }
        for fault in [FaultAction::Kill, FaultAction::Stop] {
            let refused = Err("it has ended by itself".to_owned());
            assert_eq!(member.inflict(fault), refused);
        }
        member.inflict(FaultAction::Restart).unwrap();
        assert!(member.ended_by_itself(), "a later start does not undo it");
    }

    #[test]
    fn a_broker_that_does_not_start_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let listening = "echo 'the port is in use' >&2; exit 1";
        let error = Running::nats(&nats(&directory, listening)).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("did not start: the port is in use"),
            "{error}"
        );
    }
}
