import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import { dialectNamed } from '../../config/dialects/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { RunSpec } from '../../config/run-spec.ts';
import { answerSpoiled, configsFolder, runFiles, typoMissed, typosOf } from './run-files.ts';
import { accept } from './read-run.ts';

const seeds = runFiles('seeds');
const all = [...seeds, ...runFiles('runs')];

describe('run files that people have', () => {
  for (const { name, text } of all) {
    test(`${name} loads, and its spec survives being stored`, () => {
      const { spec, readAs } = accept(text, { file: name });
      assert.deepEqual(RunSpec.parse(JSON.parse(JSON.stringify(spec))), spec);
      const again = parseRunConfig(text, { file: name, dialect: readAs.dialect });
      assert.ok(again.ok && JSON.stringify(again.spec) === JSON.stringify(spec));
    });
  }

  test('each is read in the words it is written in', () => {
    const read = Object.fromEntries(all.map(({ name, text }) => [name, accept(text, { file: name }).readAs.dialect]));
    const undecided = [/^seeds\/(hosted|flat-wiki)/, /^runs\/(head|hosted|old\/lab)/];
    for (const [name, dialect] of Object.entries(read)) {
      if (undecided.some((pattern) => pattern.test(name))) assert.equal(dialect, 'hosted', name);
      if (/vf-rl/.test(name)) assert.equal(dialect, 'vf-rl', name);
      if (/prime-rl/.test(name)) assert.equal(dialect, 'prime-rl-0.4', name);
    }
    assert.equal(read['seeds/flat-full.toml'], 'flat');
    assert.equal(read['runs/old/rl/qwen-3-5-moe-advanced@2026-05-06-aa4021.toml'], 'hosted-0.5.61');
  });

  test('what the keys leave open is said, with what would differ', () => {
    const { readAs } = accept(seeds.find(({ name }) => name.includes('hosted'))!.text, { file: 'x.toml' });
    assert.deepEqual(
      readAs.alternatives.map(({ dialect }) => dialect),
      ['hosted-0.5.61', 'flat', 'ratchet'],
    );
    assert.ok(readAs.alternatives[0]!.differs.includes('trainer.loss.type: "dppo" here, "importance_sampling" there'));
    assert.ok(readAs.alternatives[1]!.differs.includes('learning_rate: 0.0001 here, 0.000001 there'));
  });
});

describe('what each sample of the documents means', () => {
  for (const { name, text } of seeds) {
    test(name, () => {
      const golden = path.join(configsFolder, 'golden', `${path.basename(name, '.toml')}.json`);
      const { spec, warnings, readAs } = accept(text, { file: path.basename(name) });
      const found = `${JSON.stringify({ readAs: readAs.dialect, warnings, spec }, null, 2)}\n`;
      if (process.env['RATCHET_GOLDEN'] === 'write') writeFileSync(golden, found);
      assert.equal(readFileSync(golden, 'utf8'), found);
    });
  }
});

describe('misspelt keys', () => {
  /** One character of each kind of place, at every fourth place; `bench configs` tries all. */
  const isTried = (key: string, at: number): boolean => (key.length + at) % 4 === 0;
  const few = (key: string, at: number): string => 'ekx_'[((key.length + at) >> 2) % 4]!;
  for (const { name, text } of seeds) {
    test(`a key of ${name} that is off by one character is an error that suggests the right one`, () => {
      const dialect = dialectNamed(accept(text, { file: name }).readAs.dialect);
      const missed: string[] = [];
      let tried = 0;
      for (const typo of typosOf(text, few, isTried)) {
        tried++;
        const wrong = typoMissed(typo, dialect, name);
        if (wrong !== null) missed.push(`${typo.path.join('.')} as ${typo.typo}: ${wrong}`);
      }
      assert.ok(tried > 80);
      assert.deepEqual(missed, []);
    });
  }
});

test('1,000 spoiled run files are answered, not stumbled over', () => {
  answerSpoiled(all, 1_000);
});
