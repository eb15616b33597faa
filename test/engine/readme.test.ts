import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { temporaryFolder } from './models.ts';

const engine = new URL('../../engine/', import.meta.url);

test("the example of the engine's README runs as it is written and learns", async (t) => {
  const text = await readFile(new URL('README.md', engine), 'utf8');
  const [, code] = /```ts\n(.*?)```/s.exec(text) ?? [];
  assert.ok(code, 'engine/README.md has an example');
  const folder = await temporaryFolder(t);
  const example = join(folder, 'example.mts');
  assert.match(code, /'\.\/engine\/index\.ts'/);
  await writeFile(example, code.replaceAll("'./engine/index.ts'", `'${new URL('index.ts', engine).href}'`));
  const loader = fileURLToPath(import.meta.resolve('tsx'));
  const { stdout } = await promisify(execFile)(process.execPath, ['--import', loader, example], { cwd: folder });
  const figures = (pattern: RegExp): number[] => [...stdout.matchAll(pattern)].map(([, figure]) => Number(figure));
  const losses = figures(/^sft \d+: loss (\S+)$/gm);
  const rewards = figures(/^rl \d+: reward (\S+), applied$/gm);
  assert.equal(losses.length, 4);
  assert.ok(losses[3]! < 0.5 * losses[0]!, `losses ${losses.join()}`);
  assert.equal(rewards.length, 10);
  assert.ok(rewards[9]! > rewards[0]! + 0.2, `rewards ${rewards.join()}`);
  assert.match(stdout, /^exported$/m);
});
