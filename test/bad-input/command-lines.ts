import type { CommandUnknownOpts as Command } from '@commander-js/extra-typings';
import { commandGroups, program } from '../../cli/commands.ts';
import type { Random } from './damages.ts';

/** They serve or train until they are stopped, install, write into the folder, or look at the machine instead of at what was typed. */
const untried = new Set(
  ['dev', 'worker', 'weights-agent', 'codec', 'temporal', 'attach', 'init', 'lab setup', 'doctor', 'baseline'].concat([
    'env init',
    'env install',
    'env uninstall',
    'env check',
    'eval tui',
  ]),
);
/** Nothing is trained or evaluated here: a line that would be right is only looked at. */
const onlyLookedAt = new Set(['train', 'rl', 'prime-rl', 'vf-rl', 'eval run', 'eval checkpoints', 'eval', 'gepa run']);
/** Without end, or not to be done to the run that is read. */
const leftOut = new Set(['--follow', '--watcher', '--serve', '--yes', '--repair', '--fresh', '--resume', '--dry-run']);

/** A command with no commands below it, or one that does something without them, and how it is typed. */
interface Leaf {
  readonly typed: readonly string[];
  readonly takesFile: boolean;
  readonly takesAny: boolean;
  readonly options: readonly { readonly long: string; readonly hasValue: boolean }[];
}

async function leaves(): Promise<readonly Leaf[]> {
  const names = Object.values(commandGroups).flatMap((group) => Object.keys(group));
  const roots = await Promise.all(names.map(async (name) => (await program(name, '')).commands));
  return roots.flat().flatMap((command) => leavesOf(command, [command.name()]));
}

function leavesOf(command: Command, typed: readonly string[]): Leaf[] {
  const below = command.commands.flatMap((one) => leavesOf(one, [...typed, one.name()]));
  if (untried.has(typed.join(' '))) return below;
  const options = command.options
    .filter(({ long }) => long && !leftOut.has(long))
    .map(({ long, required, optional }) => ({ long: long!, hasValue: required || optional }));
  const [first] = command.registeredArguments;
  return [...below, { typed, takesFile: /file/.test(first?.name() ?? ''), takesAny: first !== undefined, options }];
}

/** Improbable words, and some probable ones. */
const words: readonly string[] = [
  '',
  ' ',
  '-',
  '--',
  '---',
  '@',
  '..',
  '/',
  '/dev/zero',
  '/dev/null',
  'fifo.toml',
  'folder.toml',
  'loop.toml',
  'words',
  'no-such-run',
  'words/../words',
  'x'.repeat(5_000),
  '\u001b[2J\u202eevil',
  '\u0000'.replace('\u0000', '\ufffd'),
  '*'.repeat(40) + 'x',
  '***x***y***',
  '[[[[',
  '(a+)+$',
  '-1',
  '1e999',
  'NaN',
  '99999999999999999999',
  '0x10',
  'train/reward',
  '--step',
  '--step=-1',
  '--step=1e9',
  '--last=0',
  '--last=1e9',
  '--limit=-1',
  '--since=x',
  '--json',
  '--csv',
  '--names',
  '--all',
  '--frobnicate',
  '--frobnicate=1',
  '--store',
  '--store=file:',
  '--store=http://x',
  '--store=s3://',
  '--store=file:///dev/zero',
  '--store=\u202e',
  '--name',
  '--name=../x',
  '--max-steps',
  '--max-steps=-1',
  '--max-steps=many',
  '--a.b.c.d=1',
  `--${'a.'.repeat(3_000)}b=1`,
  '--__proto__.x=1',
  '--constructor.prototype.x=1',
  '--sampling=1',
  '--sampling.temperature',
  '--sampling.temperature=hot',
  '--env.0.args=7',
  '--dry-run',
  '--dialect=klingon',
  'show',
  'run',
  'diff',
  'list',
  'info',
  'learning_rate=',
  '=1',
  'max_steps=x',
];

/** Command lines that were found to go wrong once, or that one mistypes. */
const known: readonly (readonly string[])[] = [
  ['train'],
  ['train', '--frobnicate'],
  ['train', '--frobnicate', '--dry-run'],
  ['check'],
  ['check', '/dev/zero'],
  ['check', 'fifo.toml'],
  ['check', 'folder.toml'],
  ['check', 'loop.toml'],
  ['train', 'fifo.toml'],
  ['train', '/dev/zero', '--dry-run'],
  ['config', 'show', 'fifo.toml'],
  ['eval', 'run', 'fifo.toml'],
  ['gepa', 'run', 'fifo.toml'],
  ['metrics', 'words', `${'*'.repeat(60)}x`],
  ['metrics', 'words', '*a*a*a*a*a*a*a*a*a*a*b'],
  ['status', '\u001b]0;title\u0007'],
  ['frobnicate'],
  ['\u001b[2J'],
  ['trian', 'good.toml'],
  ['check', 'good.toml', `--${'x.'.repeat(2_000)}y=1`],
  ['check', 'good.toml', '--max-steps=\u202e7'],
  ['check', 'good.toml', '--import', '--env.0.id=./exits.ts'],
  ['train', 'good.toml', '--dry-run', '--import', '--env.0.id=./exits.ts'],
  ['env', 'info', './exits.ts'],
  ['env', 'info', './throws.ts'],
  ['env', 'info', './null.ts'],
  ['env', 'info', './negative.ts'],
  ['env', 'info', './fifo.ts'],
];

/** Whether a line is known to be wrong, as above; names of metrics with many stars may match some. */
export function mustBeRefusedLine(args: readonly string[]): boolean {
  return known.includes(args) && args[0] !== 'metrics';
}

export async function commandLines(count: number, random: Random): Promise<readonly (readonly string[])[]> {
  const tried = await leaves();
  const drawn = Array.from({ length: count - known.length }, (_, i) => drawnLine(tried[i % tried.length]!, random));
  return [...known, ...drawn];
}

/** Most have what the command takes and an option of its own, or it is refused before anybody looks at the values. */
function drawnLine({ typed, takesFile, takesAny, options }: Leaf, random: Random): readonly string[] {
  const line = [...typed];
  if (takesAny && random() < 0.8) line.push(random() < 0.7 ? (takesFile ? 'good.toml' : 'words') : word(random));
  for (let own = Math.floor(random() * 3); own > 0 && options.length > 0; own--) {
    const { long, hasValue } = options[Math.floor(random() * options.length)]!;
    line.push(hasValue ? `${long}=${word(random)}` : long);
  }
  if (random() < 0.4) line.push(word(random));
  if (onlyLookedAt.has(typed.join(' '))) line.push('--dry-run');
  return line;
}

function word(random: Random): string {
  return words[Math.floor(random() * words.length)]!;
}
