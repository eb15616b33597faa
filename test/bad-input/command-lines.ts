import { commandGroups } from '../../cli/commands.ts';
import type { Random } from './damages.ts';

/** Commands that start nothing and go on asking nobody: `dev` and `worker` would serve until they are stopped. */
const asked = Object.values(commandGroups)
  .flatMap((group) => Object.keys(group))
  .filter(
    (name) =>
      !['dev', 'worker', 'weights-agent', 'temporal', 'attach', 'lab', 'init', 'doctor', 'baseline'].includes(name),
  );

/** Words that nobody types, and some that one does. */
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
];

export function* commandLines(count: number, random: Random): Generator<readonly string[]> {
  yield* known;
  for (let i = known.length; i < count; i++) {
    const line = [asked[i % asked.length]!];
    if (random() < 0.6)
      line.push(['check', 'train', 'rl', 'vf-rl', 'prime-rl'].includes(line[0]!) ? 'good.toml' : 'words');
    for (let words = Math.floor(random() * 4); words > 0; words--) line.push(word(random));
    // Nothing is trained here: a line that would be right is only looked at.
    if (['train', 'rl', 'vf-rl', 'prime-rl'].includes(line[0]!)) line.push('--dry-run');
    if (line[0] === 'eval' || line[0] === 'gepa') line.splice(1, 0, 'show');
    if (line[0] === 'env') line.splice(1, 0, 'list');
    yield line;
  }
}

function word(random: Random): string {
  return words[Math.floor(random() * words.length)]!;
}
