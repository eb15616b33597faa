/** A small part of `npm run bench -- bad-input`: what went wrong once, in one process. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { readRegular } from '../../host/regular-file.ts';
import { nearestName } from '../../core/suggest.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { formatProblems } from '../../config/toml/problems.ts';
import { warmUpStateIn } from '../../runs/versions/warm-up-state.ts';
import { sinkStatesIn } from '../../runs/metrics/sink-states.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { matching } from '../../cli/commands/stored/metrics.ts';
import { faultIn } from './judge.ts';
import { badRunFiles } from './run-file-cases.ts';
import { CliProcess } from './cli-process.ts';
import { casesOf, partNames, some } from './part.ts';
import { randomFrom } from '../config/run-files.ts';

const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-bad-input-'));
after(() => rmSync(folder, { recursive: true, force: true }));

describe('bad input', () => {
  test('run files that are none, too deep or too long are refused in a few lines', () => {
    for (const text of badRunFiles(60, randomFrom(1))) {
      if (text.length > 150_000) continue; // takes long: `bench bad-input` has them
      const read = parseRunConfig(text, { file: 'bad.toml' });
      if (read.ok) continue;
      const said = formatProblems(read.problems);
      // Printing removes control characters.
      const text200 = said.replaceAll(/[^\P{Cc}\n]|[\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu, '');
      const outcome = { code: 2, text: text200, chars: Math.min(said.length, 300_000) };
      assert.notEqual(faultIn(outcome, ['bad.toml'])?.fault, 'traces', text.slice(0, 80));
      assert.ok(read.problems.length > 0);
    }
    const unknown = Array.from({ length: 5_000 }, (_, i) => `unknown_${i} = ${i}`).join('\n');
    const read = parseRunConfig(unknown, { file: 'bad.toml' });
    assert.ok(!read.ok && formatProblems(read.problems).length < 30_000);
  });

  test('names of metrics with many stars are looked for at once', () => {
    const known = ['train/reward', 'eval/words/reward/mean', `${'a'.repeat(5_000)}b`];
    for (const pattern of [`${'*'.repeat(60)}x`, '*a'.repeat(40) + 'c'])
      assert.throws(() => matching(known, [pattern], true), { code: 'ConfigInvalid' });
    assert.deepEqual(matching(known, ['train/*'], true), ['train/reward']);
    assert.deepEqual(matching(known, ['*/reward*'], true), ['train/reward', 'eval/words/reward/mean']);
    assert.deepEqual(matching(known, ['eval/*/mean', 'train/reward'], true), [
      'eval/words/reward/mean',
      'train/reward',
    ]);
    assert.deepEqual(matching(known, ['train/reward*reward'], false), []);
  });

  test('a name that is no name has none near it, at once', () => {
    assert.equal(nearestName('x'.repeat(1_000_000), ['model', 'seed']), undefined);
  });

  test('what is no file is refused instead of waited for', { skip: process.platform === 'win32' }, async () => {
    const place = (name: string, put: (file: string) => void): string => {
      const file = path.join(folder, name);
      put(file);
      return file;
    };
    const none = {
      'a folder': place('folder.toml', (file) => mkdirSync(file)),
      'a FIFO': place('fifo.toml', (file) => void execFileSync('mkfifo', [file])),
      'a link that leads to itself': place('loop.toml', (file) => symlinkSync(file, file)),
      'a device': '/dev/zero',
    };
    for (const [found, file] of Object.entries(none)) {
      await assert.rejects(readRegular(file), (error: Error) => error.message.includes(`found ${found}`));
      await assert.rejects(
        loadRunConfig(file, { projectFolder: folder }),
        (error: Error) => error.name === 'ConfigInvalid',
      );
    }
    const small = place('small', (file) => writeFileSync(file, 'text'));
    assert.equal(String(await readRegular(small)), 'text');
    await assert.rejects(readRegular(small, 3), /4 bytes, more than the 3 that are read/);
  });

  test('what a warm-up stored is continued with only where it has all of it', () => {
    const ref = { key: 'a', sha256: 'b', bytes: 1 };
    const policy = { step: 0, digest: 'b', weights: 'weights/step_0/', file: ref, sums: ref };
    const whole = { step: 1, policy, optimizer: null, loss: 0.5 };
    const read = (value: unknown) => warmUpStateIn(Buffer.from(JSON.stringify(value)), 'state.json');
    assert.deepEqual(read(whole), whole);
    const broken = [null, {}, { ...whole, policy: { ...policy, file: null } }, { ...whole, optimizer: 'x' }];
    for (const value of broken) assert.throws(() => read(value), /^CheckpointDamaged: state\.json/);
  });

  for (const part of partNames) {
    test(`${part} that are wrong are refused in words that help`, { timeout: 300_000 }, async () => {
      const cases = await casesOf(part, randomFrom(1));
      const child = new CliProcess('part-child.ts');
      // Those that wait for a bound, or count up to one, are for `bench bad-input`.
      const quick = [...cases.entries()].filter(
        ([, { what, boundMs }]) => part !== 'templates' || boundMs === undefined || /list of long texts/.test(what),
      );
      const chosen = some(part === 'answers' ? quick.filter(([, one]) => one.boundMs === undefined) : quick, 60);
      try {
        for (const [index, { what, names, mustRefuse, wanted }] of chosen) {
          const outcome = await child.run(folder, [part, '1', String(index)], 60_000);
          assert.equal(faultIn(outcome, names, mustRefuse, wanted), null, what);
        }
      } finally {
        child.stop();
      }
    });
  }

  test('a stranger has a link in place of the results of an evaluation', async () => {
    const place = path.join(folder, 'evals/words--m/abcd');
    mkdirSync(place, { recursive: true });
    writeFileSync(path.join(place, 'metadata.json'), '{"env_id":"words","model":"m"}');
    symlinkSync('results.jsonl', path.join(place, 'results.jsonl'));
    const cli = new CliProcess();
    try {
      const outcome = await cli.run(folder, ['eval', 'show', 'evals'], 60_000);
      assert.equal(faultIn(outcome, ['results.jsonl'], true), null);
    } finally {
      cli.stop();
    }
  });

  test('how far sinks are is read only from what says so', () => {
    for (const text of ['', 'null', '[null]', '"x"', '{"tensorboard":null}', '{"tensorboard":{"next":1,"rows":2}}'])
      assert.throws(() => sinkStatesIn(Buffer.from(text), 'state.json'), /^CheckpointDamaged: state\.json/);
  });
});
