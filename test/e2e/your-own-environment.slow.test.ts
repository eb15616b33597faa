/**
 * docs/guide/your-own-environment.md, and the shorter way of README.md that it contains, as a newcomer follows them in a folder of
 * their own: every command of the `sh` blocks is typed, the change is made, and the model learns what the changed environment rewards.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { repositoryFolder } from './small-run.ts';

/** In the order of a document: what is typed, and what is changed in a file. */
function stepsOf(document: string): { readonly kind: string; readonly text: string }[] {
  const text = readFileSync(path.join(repositoryFolder, document), 'utf8');
  return [...text.matchAll(/^```(sh|diff)\n([\s\S]*?)^```$/gm)].map(([, kind, inner]) => ({
    kind: kind!,
    text: inner!,
  }));
}

const steps = stepsOf('docs/guide/your-own-environment.md');

let folder: string;
before(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'ratchet-newcomer-'));
  // The result of `npm install ../ratchet`.
  mkdirSync(path.join(folder, 'node_modules/.bin'), { recursive: true });
  symlinkSync(repositoryFolder, path.join(folder, 'node_modules/ratchet'));
  symlinkSync('../ratchet/cli/ratchet.mjs', path.join(folder, 'node_modules/.bin/ratchet'));
});
after(() => rmSync(folder, { recursive: true, force: true }));

test('what README.md tells a newcomer to type is all in docs/guide/your-own-environment.md, in the same order', () => {
  const lines = (of: typeof steps): string[] =>
    of.flatMap(({ kind, text }) =>
      kind === 'diff'
        ? [text]
        : text
            .trim()
            .split('\n')
            .map((line) => line.replace(/ *#.*$/, '')),
    );
  const [short, whole] = [lines(stepsOf('README.md')), lines(steps)];
  assert.ok(short.includes('npx ratchet-rl train shout.toml'));
  let from = 0;
  for (const step of short) {
    const at = whole.indexOf(step, from);
    assert.notEqual(at, -1, `${step} is not in the document`);
    from = at + 1;
  }
});

test('the commands of docs/guide/your-own-environment.md lead from nothing to an environment of one’s own that is learned', async () => {
  assert.ok(steps.filter(({ kind }) => kind === 'sh').length >= 4 && steps.some(({ kind }) => kind === 'diff'));
  const said: string[] = [];
  for (const { kind, text } of steps) {
    if (kind === 'sh') said.push(await type(text));
    else applyDiff(text);
  }
  assert.match(said.join('\n'), /is_loud {8}weight 0\.5/); // the change is there when it is looked at
  const evals = readFileSync(path.join(folder, 'outputs/shout/metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, number>)
    .filter((row) => 'eval/shout/reward/mean' in row);
  const [first, last] = [evals.at(0)!, evals.at(-1)!];
  assert.deepEqual([first['step'], last['step']], [0, 10]);
  const [before, after] = [first['eval/shout/reward/mean']!, last['eval/shout/reward/mean']!];
  assert.ok(after > before + 0.15, `held-out reward ${before} before, ${after} after`);
  assert.match(said.at(-1)!, /10/);
});

/** Types lines into a shell; all of them must succeed. */
function type(lines: string): Promise<string> {
  const environment = { ...process.env };
  delete environment['TEMPORAL_ADDRESS'];
  return new Promise((resolve, reject) => {
    const shell = spawn('sh', ['-e', '-c', lines], { cwd: folder, env: environment });
    const parts: Buffer[] = [];
    for (const stream of [shell.stdout, shell.stderr]) stream.on('data', (part: Buffer) => parts.push(part));
    shell.on('error', reject);
    shell.on('close', (code) => {
      const text = Buffer.concat(parts).toString();
      if (code === 0) resolve(text);
      else reject(new Error(`${lines}ended with ${code}:\n${text}`));
    });
  });
}

/** Each hunk replaces the lines it shows; they must be there. */
function applyDiff(diff: string): void {
  const file = path.join(folder, /^\+\+\+ (?:b\/)?(\S+)$/m.exec(diff)![1]!);
  for (const hunk of diff.split(/^@@.*@@.*\n/m).slice(1)) {
    const lines = hunk.split('\n').slice(0, -1);
    const take = (signs: string): string =>
      lines
        .filter((line) => signs.includes(line[0] ?? ' '))
        .map((line) => line.slice(1))
        .join('\n');
    const text = readFileSync(file, 'utf8');
    assert.ok(text.includes(take(' -')), `${file} has not what the document shows:\n${take(' -')}`);
    writeFileSync(
      file,
      text.replace(take(' -'), () => take(' +')),
    );
  }
}
