import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const minimal = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
const parse = (text: string, overrides: Readonly<Record<string, string>> = {}) =>
  parseRunConfig(minimal + text, { file: 'run.toml', overrides });

describe('where to continue from, in the words of other trainers', () => {
  const spellings: Readonly<Record<string, ReturnType<typeof parse>>> = {
    '[ckpt] resume_step': parse('[ckpt]\nresume_step = 50\n'),
    '[trainer.ckpt] resume_step': parse('[trainer.ckpt]\nresume_step = 50\n'),
    '[resume] step': parse('[resume]\nstep = 50\n'),
    '--resume.step': parse('', { 'resume.step': '50' }),
    '--ckpt.resume-step': parse('', { 'ckpt.resume-step': '50' }),
    '--trainer.ckpt.resume-step': parse('', { 'trainer.ckpt.resume-step': '50' }),
  };
  for (const [spelling, parsed] of Object.entries(spellings)) {
    test(`${spelling} is understood, and is no part of the run`, () => {
      assert.ok(parsed.ok);
      const plain = parse('');
      assert.ok(plain.ok);
      assert.deepEqual([parsed.resumeStep, plain.resumeStep], [50, null]);
      assert.deepEqual(parsed.spec, plain.spec);
    });
  }

  test('an empty [resume] and -1 are the latest', () => {
    for (const parsed of [parse('[resume]\n'), parse('[ckpt]\nresume_step = -1\n')]) {
      assert.ok(parsed.ok);
      assert.equal(parsed.resumeStep, -1);
    }
  });

  test('two that do not agree, and what is no step, are refused by name', () => {
    const cases = [
      [parse('[resume]\nstep = 1\n[ckpt]\nresume_step = 2\n'), 'ckpt.resume_step'],
      [parse('[ckpt]\nresume_step = -2\n'), 'ckpt.resume_step'],
      [parse('', { 'resume.step': 'latest' }), 'resume.step'],
      [parse('[ckpt]\ninterval = 5\n'), 'ckpt.interval'],
    ] as const;
    for (const [parsed, path] of cases) {
      assert.ok(!parsed.ok);
      assert.deepEqual(
        parsed.problems.map((problem) => problem.path),
        [path],
      );
    }
  });
});
