import type { CommandUnknownOpts } from '@commander-js/extra-typings';

type Options = Readonly<Record<string, unknown>>;

/**
 * Whether a command, as it is typed, changes something that others have or see: runs, sweeps, searches, evaluations,
 * pools, and what is in their store. It asks for the role operator before it does anything. Where the thing has an
 * owner, the command itself asks once more, as soon as it knows the owner.
 *
 * `no`: it only looks, or it changes what belongs to whoever types it: their files, programs and processes here.
 */
type Changes = 'yes' | 'no' | ((options: Options, words: readonly string[]) => boolean);

const unlessDryRun: Changes = ({ dryRun }) => dryRun !== true;

/** Every command, by its words behind `ratchet`. A command that is missing here is a bug. */
export const changingCommands: Readonly<Record<string, Changes>> = {
  train: unlessDryRun,
  check: 'no',
  init: 'no',
  'config convert': 'no',
  'model get': 'no',
  'model import': 'no',
  'model export': 'no',
  baseline: 'yes',
  rl: unlessDryRun,
  'prime-rl': unlessDryRun,
  'vf-rl': unlessDryRun,
  'lab setup': 'no',
  'env init': 'no',
  'env list': 'no',
  'env info': 'no',
  'env install': 'no',
  'env uninstall': 'no',
  'env check': 'no',
  'engine install': 'no',
  'engine list': 'no',

  eval: ({ weightsDir, dryRun }) => weightsDir !== undefined && dryRun !== true, // without --weights-dir it prints its help
  'eval checkpoints': unlessDryRun,
  'eval schedule': 'yes',
  'eval schedule list': 'no',
  'eval schedule pause': 'yes',
  'eval schedule resume': 'yes',
  'eval schedule trigger': 'yes',
  'eval schedule delete': 'yes',
  'eval run': unlessDryRun,
  'eval list': 'no',
  'eval show': 'no',
  'eval compare': 'no',
  'eval tui': 'no',
  sweep: ({ dryRun, pause, resume, cancel, status }, [what = '']) =>
    [pause, resume, cancel].some((one) => one !== undefined) ||
    (what.endsWith('.toml') && dryRun !== true && status !== true),
  rescore: 'yes',
  'gepa run': unlessDryRun,
  'gepa show': 'no',
  'gepa stop': 'yes',
  'gepa raise': 'yes',
  'gepa branch': 'yes',
  'gepa adopt': 'yes',

  ui: 'no', // with --steer, each thing that is asked from the page asks for a role
  attach: 'no',
  report: 'no',
  note: 'yes',
  runs: 'no',
  status: 'no',
  queue: 'no',
  events: 'no',
  metrics: 'no',
  rollouts: 'no',
  'export run': 'no',
  'export rollouts': 'no',
  index: 'no', // made of what the run stored, by pages of viewers as well
  logs: 'no',
  advise: 'no',
  chat: 'no',

  pause: 'yes',
  resume: 'yes',
  stop: 'yes',
  upgrade: unlessDryRun,
  set: 'yes',

  gc: ({ yes, keep, unkeep }) => [yes, keep, unkeep].some((one) => one !== undefined),
  import: 'yes',
  fsck: ({ repair }) => repair === true,
  checkpoints: 'no',
  rewind: 'yes',
  fork: 'yes',
  audit: 'no',

  doctor: 'no',
  'sandboxes list': 'no',
  'sandboxes sweep': 'yes',
  cache: 'no',
  uninstall: (_, runs) => runs.length > 0, // else it removes what is on this machine alone, and no run
  dev: 'no', // processes of this machine; what they do was asked for by others
  worker: 'no',
  'pool set': 'yes',
  'weights-agent': 'no',
  codec: 'no',
  temporal: 'no', // Temporal's own program: whom the server lets do what is said by its authorizer
};

/** Lets every command of the program ask for a role first, if it changes something as it is typed. */
export function askRolesFirst(program: CommandUnknownOpts): void {
  program.hook('preAction', async (_, command) => {
    const words = wordsOf(command, program);
    const changes = changingCommands[words];
    if (changes === undefined) throw new Error(`ratchet ${words} is missing in cli/changing-commands.ts`);
    if (changes === 'no' || (changes !== 'yes' && !changes(command.opts(), command.args))) return;
    const { requireRole } = await import('../workers/temporal/who-may.ts');
    await requireRole(words, { of: 'own' });
  });
}

/** `eval schedule pause`. */
export function wordsOf(command: CommandUnknownOpts, program: CommandUnknownOpts): string {
  const names: string[] = [];
  for (let one: CommandUnknownOpts | null = command; one !== null && one !== program; one = one.parent)
    names.unshift(one.name());
  return names.join(' ');
}
