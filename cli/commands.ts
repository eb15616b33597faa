import { Command, type CommandUnknownOpts } from '@commander-js/extra-typings';
import { askRolesFirst } from './changing-commands.ts';
import { withoutControls } from './output/plain-text.ts';

type Load = () => Promise<CommandUnknownOpts>;

/**
 * All commands, in the groups and with the lines of `ratchet --help`. A command's module is loaded on use: `ratchet
 * status` need not wait for the engine and the worker.
 */
export const commandGroups: Readonly<Record<string, Readonly<Record<string, { line: string; load: Load }>>>> = {
  'Train:': {
    train: {
      line: 'train with a run file; continues the run if it exists',
      load: async () => (await import('./commands/run/train.ts')).trainCommand,
    },
    check: {
      line: 'everything that is wrong with a run file; starts nothing',
      load: async () => (await import('./commands/prepare/check.ts')).checkCommand,
    },
    init: {
      line: 'example configs for this folder; nothing is overwritten',
      load: async () => (await import('./commands/prepare/init.ts')).initCommand,
    },
    config: {
      line: 'convert a run file to another format; endpoints.py to TOML',
      load: async () => (await import('./commands/prepare/config.ts')).configCommand,
    },
    model: {
      line: 'fetch a model of the Hub; read a GGUF file; export a run',
      load: async () => (await import('./commands/prepare/model.ts')).modelCommand,
    },
    baseline: {
      line: 'before training: too hard, too easy, no signal?',
      load: async () => (await import('./commands/prepare/baseline.ts')).baselineCommand,
    },
    rl: {
      line: "train, typed as prime-rl's rl: rl @ base.toml @ mine.toml --ckpt",
      load: async () => (await import('./commands/run/rl.ts')).rlCommand,
    },
    'prime-rl': {
      line: 'train, typed as prime-rl @ FILE or prime-rl FILE',
      load: async () => (await import('./commands/run/rl.ts')).primeRlCommand,
    },
    'vf-rl': {
      line: "train, typed as verifiers' vf-rl @ FILE",
      load: async () => (await import('./commands/run/rl.ts')).vfRlCommand,
    },
    lab: {
      line: 'example configs for this folder',
      load: async () => (await import('./commands/prepare/lab.ts')).labCommand,
    },
    env: {
      line: 'environments: write one of your own, list them, look at one',
      load: async () => (await import('./commands/prepare/env.ts')).envCommand,
    },
    engine: {
      line: 'install PyTorch or vLLM, to train and sample on GPUs',
      load: async () => (await import('./commands/prepare/engine.ts')).engineCommand,
    },
  },
  'Evaluate, improve prompts:': {
    eval: {
      line: 'evaluate models and checkpoints; results in the terminal',
      load: async () => (await import('./commands/eval.ts')).evalCommand,
    },
    sweep: {
      line: 'train a table of settings; drop what is behind at rungs',
      load: async () => (await import('./commands/run/sweep.ts')).sweepCommand,
    },
    rescore: {
      line: 'another rubric on stored rollouts, without sampling',
      load: async () => (await import('./commands/stored/rescore.ts')).rescoreCommand,
    },
    gepa: {
      line: 'look for a better system prompt, within a budget',
      load: async () => (await import('./commands/gepa.ts')).gepaCommand,
    },
  },
  'Watch:': {
    ui: {
      line: 'a page of a run: curves, workers, every rollout',
      load: async () => (await import('./commands/services/ui.ts')).uiCommand,
    },
    attach: {
      line: 'the live view of a running run',
      load: async () => (await import('./commands/run/attach.ts')).attachCommand,
    },
    report: {
      line: 'the same page in one file',
      load: async () => (await import('./commands/stored/report.ts')).reportCommand,
    },
    note: {
      line: 'write a note into a run, for its page and its status',
      load: async () => (await import('./commands/run/note.ts')).noteCommand,
    },
    runs: {
      line: 'all runs, the newest first',
      load: async () => (await import('./commands/run/runs.ts')).runsCommand,
    },
    status: {
      line: 'how far and how good a run is, and what it waits for',
      load: async () => (await import('./commands/run/status.ts')).statusCommand,
    },
    queue: {
      line: 'who holds a trainer of a pool, who waits for one and why',
      load: async () => (await import('./commands/run/queue.ts')).queueCommand,
    },
    events: {
      line: 'what happened in a run',
      load: async () => (await import('./commands/run/events.ts')).eventsCommand,
    },
    metrics: {
      line: 'committed metrics, one row per step',
      load: async () => (await import('./commands/stored/metrics.ts')).metricsCommand,
    },
    rollouts: {
      line: 'what the policy said in a step, and its rewards',
      load: async () => (await import('./commands/stored/rollouts.ts')).rolloutsCommand,
    },
    export: {
      line: 'a run as one archive; its rollouts as a table',
      load: async () => (await import('./commands/stored/export.ts')).exportCommand,
    },
    index: {
      line: 'index the rollouts of a run, for its page',
      load: async () => (await import('./commands/stored/index-run.ts')).indexCommand,
    },
    logs: {
      line: "a run's logs, by role",
      load: async () => (await import('./commands/run/logs.ts')).logsCommand,
    },
    advise: {
      line: 'unstable, slow, not learning: what to change',
      load: async () => (await import('./commands/run/advise.ts')).adviseCommand,
    },
    chat: {
      line: 'talk to a version of the policy',
      load: async () => (await import('./commands/run/chat.ts')).chatCommand,
    },
  },
  'Steer:': {
    pause: {
      line: 'finish what is under way, then start no further step',
      load: async () => (await import('./commands/run/steer.ts')).pauseCommand,
    },
    resume: {
      line: 'continue after a pause',
      load: async () => (await import('./commands/run/steer.ts')).resumeCommand,
    },
    stop: {
      line: 'end a run after the step under way',
      load: async () => (await import('./commands/run/steer.ts')).stopCommand,
    },
    upgrade: {
      line: 'move open runs to the present version of Ratchet',
      load: async () => (await import('./commands/services/upgrade.ts')).upgradeCommand,
    },
    set: {
      line: 'change a running run: learning_rate=1e-4 max_steps=200 …',
      load: async () => (await import('./commands/run/steer.ts')).setCommand,
    },
  },
  'Go back, branch, prove:': {
    gc: {
      line: 'what no resume, rewind or audit needs; --yes removes it',
      load: async () => (await import('./commands/stored/gc.ts')).gcCommand,
    },
    import: {
      line: 'a run from an archive of ratchet export',
      load: async () => (await import('./commands/stored/import.ts')).importCommand,
    },
    fsck: {
      line: 'everything in a run that cannot be read; --repair',
      load: async () => (await import('./commands/stored/fsck.ts')).fsckCommand,
    },
    checkpoints: {
      line: 'every checkpoint, checked against its sha256',
      load: async () => (await import('./commands/stored/checkpoints.ts')).checkpointsCommand,
    },
    rewind: {
      line: 'continue from an earlier step; later steps stay in the store',
      load: async () => (await import('./commands/run/rewind.ts')).rewindCommand,
    },
    fork: {
      line: 'a new run that begins at a checkpoint of another',
      load: async () => (await import('./commands/run/fork.ts')).forkCommand,
    },
    audit: {
      line: 'prove from the commits that every group is accounted for',
      load: async () => (await import('./commands/stored/audit.ts')).auditCommand,
    },
  },
  'Machines:': {
    doctor: {
      line: 'what runs need on this machine, one line each with the fix',
      load: async () => (await import('./commands/services/doctor.ts')).doctorCommand,
    },
    sandboxes: {
      line: 'sandboxes of agents: who has one; end what nobody owns',
      load: async () => (await import('./commands/services/sandboxes.ts')).sandboxesCommand,
    },
    cache: {
      line: 'what Ratchet keeps on this machine, with sizes',
      load: async () => (await import('./commands/stored/cache.ts')).cacheCommand,
    },
    uninstall: {
      line: 'what Ratchet left on this machine; --yes removes it, but no run',
      load: async () => (await import('./commands/services/uninstall.ts')).uninstallCommand,
    },
    dev: {
      line: 'a Temporal server and all roles here, supervised, until Ctrl-C',
      load: async () => (await import('./commands/services/dev.ts')).devCommand,
    },
    worker: {
      line: 'one worker against a Temporal server elsewhere',
      load: async () => (await import('./commands/services/worker.ts')).workerCommand,
    },
    pool: {
      line: 'quotas and shares of the teams of a pool',
      load: async () => (await import('./commands/services/pool.ts')).poolCommand,
    },
    'weights-agent': {
      line: 'beside a vLLM server on another host: fetches versions there',
      load: async () => (await import('./commands/services/weights-agent.ts')).weightsAgentCommand,
    },
    codec: {
      line: 'encrypted histories in the Temporal UI, for those with the key',
      load: async () => (await import('./commands/services/codec.ts')).codecCommand,
    },
    temporal: {
      line: 'the Temporal CLI, pointed at the server of this folder',
      load: async () => (await import('./commands/services/temporal.ts')).temporalCommand,
    },
  },
};

/** The program with the requested command; without one, with the names and lines of all, for its help. */
export async function program(asked: string | undefined, version: string): Promise<CommandUnknownOpts> {
  const ratchet = new Command('ratchet')
    .description('RL post-training of language models as a durable Temporal workflow.')
    .version(version, '-V, --version')
    .showHelpAfterError('(npx ratchet-rl --help lists the commands)')
    .configureOutput({ outputError })
    .enablePositionalOptions() // `eval run --dry-run` is an option of `eval run`
    .configureHelp({ subcommandTerm: (command) => command.name() })
    .addHelpText('after', '\nnpx ratchet-rl COMMAND --help says more of one.')
    .exitOverride();
  askRolesFirst(ratchet);
  const groups = Object.entries(commandGroups);
  const isKnown = groups.some(([, group]) => asked !== undefined && Object.hasOwn(group, asked));
  for (const [title, group] of groups) {
    for (const [name, { line, load }] of Object.entries(group)) {
      if (isKnown && name !== asked) continue;
      const command = isKnown ? await load() : new Command(name);
      ratchet.addCommand(refusing(command.summary(line).helpGroup(title), `npx ratchet-rl ${name}`));
    }
  }
  return ratchet;
}

/** Usage errors end with the `--help` to read. */
function refusing(command: CommandUnknownOpts, typed: string): CommandUnknownOpts {
  for (const one of command.commands) refusing(one, `${typed} ${one.name()}`);
  return command.showHelpAfterError(`(${typed} --help says how)`).configureOutput({ outputError }).exitOverride();
}

/** Commander repeats the typed text, which may hold control characters. */
function outputError(text: string, write: (text: string) => void): void {
  write(withoutControls(text));
}
