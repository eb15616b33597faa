import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { readConfigLine } from '../../cli/typed/config-line.ts';
import { trainAgain, withoutResume } from '../../cli/typed/typed-command.ts';
import { RatchetError } from '../../core/errors.ts';

describe('run files on the command line', () => {
  const cases: Readonly<Record<string, ReturnType<typeof readConfigLine>>> = {
    'a.toml': { file: 'a.toml', over: [], overrides: {} },
    '@ a.toml': { file: 'a.toml', over: [], overrides: {} },
    '@ a.toml @ b.toml --trainer.optim.lr 1e-5 --no-wandb --ckpt': {
      file: 'a.toml',
      over: [{ file: 'b.toml' }],
      overrides: { 'trainer.optim.lr': '1e-5', wandb: 'false', ckpt: 'true' },
    },
    'a.toml --trainer @ t.toml --max-steps 5': {
      file: 'a.toml',
      over: [{ file: 't.toml', section: 'trainer' }],
      overrides: { 'max-steps': '5' },
    },
    '--trainer @ t.toml --orchestrator @ o.toml --max-steps 5': {
      file: 't.toml',
      over: [
        { file: 't.toml', section: 'trainer' },
        { file: 'o.toml', section: 'orchestrator' },
      ],
      overrides: { 'max-steps': '5' },
    },
    '--no-wandb @ a.toml --trainer.no-ckpt': {
      file: 'a.toml',
      over: [],
      overrides: { wandb: 'false', 'trainer.ckpt': 'false' },
    },
    '@ a.toml --resume --name=x': { file: 'a.toml', over: [], overrides: { resume: 'true', name: 'x' } },
    '@ a.toml --eval.num_examples -1': { file: 'a.toml', over: [], overrides: { 'eval.num_examples': '-1' } },
  };
  for (const [line, expected] of Object.entries(cases)) {
    test(line, () => assert.deepEqual(readConfigLine(line.split(' ')), expected));
  }

  const refused: Readonly<Record<string, RegExp>> = {
    '@a.toml': /a space after the @: @ a.toml/,
    '@': /a run file after @, got "nothing"/,
    '@ --ckpt': /a run file after @, got "--ckpt"/,
    'a.toml b.toml': /"@ FILE" for a further run file, got "b.toml"/,
    '--max-steps 5': /expected a run file/,
  };
  for (const [line, said] of Object.entries(refused)) {
    test(`${line} is refused, with what to write`, () => {
      assert.throws(
        () => readConfigLine(line.split(' ')),
        (error) => {
          assert.ok(error instanceof RatchetError && error.code === 'ConfigInvalid');
          assert.match(error.message, said);
          return true;
        },
      );
    });
  }

  test('are given back as one would type them again', () => {
    const words = '@ my run.toml|@ b.toml|--trainer @ t.toml|--no-wandb|--trainer.ckpt.resume-step 50'.split('|');
    const line = readConfigLine(
      words.flatMap((word) => (word.startsWith('@') ? ['@', word.slice(2)] : word.split(' '))),
    );
    const tables = readConfigLine('--trainer @ t.toml --orchestrator @ o.toml'.split(' '));
    assert.equal(
      trainAgain({ ...tables, name: null }),
      'npx ratchet-rl train --trainer @ t.toml --orchestrator @ o.toml',
    );
    const command = { ...line, dialect: 'prime-rl', name: null };
    const typed = "npx ratchet-rl train 'my run.toml' @ b.toml --trainer @ t.toml --dialect prime-rl --no-wandb";
    assert.equal(trainAgain(withoutResume(command)), typed);
    assert.equal(trainAgain(command), `${typed} --trainer.ckpt.resume-step 50`);
  });
});
