import { Command, CommanderError } from 'commander';
import { RatchetError } from '../core/errors.ts';
import { codeVersion } from '../workers/code-version.ts';

const ratchet = new Command('ratchet')
  .description('RL post-training of language models as a durable Temporal workflow.')
  .version(codeVersion, '-V, --version')
  .showHelpAfterError('(ratchet --help lists the commands)')
  .exitOverride();

/** Only the command that was asked for is loaded: `ratchet status` need not wait for the engine and the worker. */
const commands = {
  train: async () => (await import('./commands/train.ts')).trainCommand,
  attach: async () => (await import('./commands/attach.ts')).attachCommand,
  check: async () => (await import('./commands/check.ts')).checkCommand,
  env: async () => (await import('./commands/env.ts')).envCommand,
  status: async () => (await import('./commands/status.ts')).statusCommand,
  runs: async () => (await import('./commands/runs.ts')).runsCommand,
  events: async () => (await import('./commands/events.ts')).eventsCommand,
  metrics: async () => (await import('./commands/metrics.ts')).metricsCommand,
  rollouts: async () => (await import('./commands/rollouts.ts')).rolloutsCommand,
  chat: async () => (await import('./commands/chat.ts')).chatCommand,
  logs: async () => (await import('./commands/logs.ts')).logsCommand,
  pause: async () => (await import('./commands/steer.ts')).pauseCommand,
  resume: async () => (await import('./commands/steer.ts')).resumeCommand,
  stop: async () => (await import('./commands/steer.ts')).stopCommand,
  set: async () => (await import('./commands/steer.ts')).setCommand,
  doctor: async () => (await import('./commands/doctor.ts')).doctorCommand,
  baseline: async () => (await import('./commands/baseline.ts')).baselineCommand,
  advise: async () => (await import('./commands/advise.ts')).adviseCommand,
  audit: async () => (await import('./commands/audit.ts')).auditCommand,
  checkpoints: async () => (await import('./commands/checkpoints.ts')).checkpointsCommand,
  rewind: async () => (await import('./commands/rewind.ts')).rewindCommand,
  fork: async () => (await import('./commands/fork.ts')).forkCommand,
  dev: async () => (await import('./commands/dev.ts')).devCommand,
  worker: async () => (await import('./commands/worker.ts')).workerCommand,
  temporal: async () => (await import('./commands/temporal.ts')).temporalCommand,
};

const asked = process.argv[2];
const isKnown = (name: string | undefined): name is keyof typeof commands => name !== undefined && name in commands;
const wanted = isKnown(asked) ? [commands[asked]] : Object.values(commands);

try {
  for (const load of wanted) ratchet.addCommand(await load());
  await ratchet.parseAsync(process.argv);
} catch (error) {
  process.exitCode = report(error);
}

/** Our own errors as their message alone; anything else is a bug and keeps its stack. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode;
  if (error instanceof RatchetError) {
    process.stderr.write(`${error.message}\n`);
    return error.code === 'ConfigInvalid' ? 2 : 1;
  }
  process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
  return 1;
}
