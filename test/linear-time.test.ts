import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { boxed, lastNumber, numberAfterHashes, withoutThinking, xmlParser } from '../backends/environments/kit.ts';
import { SandboxNames } from '../backends/environments/agent/capture/sandbox-names.ts';
import { isAlike } from '../backends/environments/agent/capture/volatile-outputs.ts';
import { apisOf } from '../backends/environments/packages/package.ts';
import { verifiersRequirement } from '../backends/environments/packages/requirement.ts';
import { tracebackOf } from '../backends/environments/score.ts';
import { showStoreUri } from '../store/store-uri.ts';
import { troubleKindOf } from '../backends/tinker/trouble.ts';
import { onOneLine } from '../cli/output/plain-text.ts';
import { trainAgain } from '../cli/typed/typed-command.ts';
import { messagesOf } from '../core/eval/result-rows.ts';
import { plainMarkdown } from '../core/markdown.ts';
import { extractText } from '../core/gepa/reflection-prompt.ts';
import { unifiedDiff } from '../core/gepa/text-diff.ts';
import { treeDocument } from '../core/gepa/results.ts';
import { asRunName } from '../core/names.ts';
import { saysEngineDied, saysNcclFailed, saysOutOfMemory, whereItFailed } from '../core/rl/failures.ts';
import { PythonProblem, readPythonAssignment } from '../config/models/python-literal.ts';
import { looksSecret, secretValues, withoutSecrets } from '../config/toml/secrets.ts';
import { readSpeech } from '../engine/speech/speech.ts';
import { exactNumber } from '../environments/math-python/exact-number.ts';

/** From the lengths that no test would notice to a megabyte; what grows with the square of them is found before that takes a day. */
const lengths = [2 ** 10, 2 ** 14, 2 ** 17, 2 ** 20];
/** Linear work over a megabyte takes some ten milliseconds; over its square, hours. */
const secondsMax = 3;

const readers: Readonly<Record<string, readonly [read: (text: string) => unknown, worst: readonly string[]]>> = {
  looksSecret: [looksSecret, ['a', 'a_', 'a:', 'a://', 'a://:', 'sk-', '-----BEGIN ', '-----BEGIN A', 'hf_']],
  withoutSecrets: [
    (text) => withoutSecrets(text, ['a secret', String.raw`"/a\secret`, '%%%%']),
    ['a', 'http://', 'a://b:', 'sk-', 'a secret', '\\', 'secret\\', '"\\/a\\', '%', '%25', 'YSBzZWNyZXQ'],
  ],
  'secrets of an environment': [
    (text) => secretValues({ A: text }),
    ['a', 'a://', 'a://b:', 'password=', ';', ' ', 'https://', '/1a'],
  ],
  'the text of an error': [
    (text) => [tracebackOf(new Error(text)), whereItFailed(`${text}\n${text}`)],
    ['a', ' ', '\n at ', 'a://b:'],
  ],
  'the cause of a failure': [
    (text) => [saysOutOfMemory(`exit ${text}`), saysNcclFailed(`NCCL${text}`), saysEngineDied(text)],
    [' ', 'exit ', 'EngineDead', 'EngineCore', 'NCCL ', 'ncclSystem', '[E', ': line 1: ', ': line 1:\n', 'Killed '],
  ],
  'tags of XML': [
    (text) => {
      const parser = xmlParser(['a', 'b']);
      return [text, `<a></a>${text}`, `<a>${text}</b>!`].map((said) => [parser.parse(said), parser.formatReward(said)]);
    },
    ['<a>', '<a>\n', '</a>', '</a><b>', '<a></a>', ' ', '<a></b>'],
  ],
  boxed: [boxed, [String.raw`\boxed{`, '{', '}', String.raw`\boxed{}`]],
  numbers: [(text) => [lastNumber(text), numberAfterHashes(`#### ${text}`)], ['1', '1,000', ',000', '-', '1.', '-1']],
  'a fraction': [
    (text) => [exactNumber(text), exactNumber(`3/${text}`), exactNumber(`0.${text}/3`)],
    ['1', '1,000', '7', String.raw`\frac{`, String.raw`\frac{}{`, '(', ' ', String.raw`\text{`],
  ],
  thoughts: [
    (text) => [withoutThinking(text), messagesOf([{ role: 'assistant', content: text }])],
    [' ', '\n', '<think>', '</think>', '<think> '],
  ],
  'calls of tools': [
    (text: string) => readSpeech(text, { tools: [] }),
    ['<tool_call>', '<tool_call>{}</tool_call>', '[', ' ', '<', '</tool_call>'],
  ],
  'an answer of a reflection': [extractText, ['`', '``` ', 'a', '\n', '```\n']],
  'candidates of prompts': [
    (text) => treeDocument([{ prompt: text, texts: {}, sha256: '', parents: [], scores: [], callsBefore: 0 }], 0),
    ['``` ', '`'],
  ],
  "a package's files": [
    (text) => [
      verifiersRequirement([`verifiers${text}\n!\n!`]),
      apisOf('', `from ${text}`),
      apisOf('', `${text}\ndef ${text}`),
    ],
    [' ', '[', 'import ', 'import.', 'async ', 'async\n', 'def ', 'from '],
  ],
  "a server's words": [(text) => troubleKindOf(400, text), ['checkpoint ', ' ', 'not ']],
  'a name of a run': [asRunName, ['.', '-', '.a', ' ']],
  'a store': [(text) => showStoreUri(`s3:${text}\n!`), ['/', '?', '@', '//']],
  'a setting that was typed': [
    (text) => trainAgain({ file: 'a', name: null, overrides: { [`${text}.`]: 'false' } }),
    ['a', '.'],
  ],
  "a line in Temporal's details": [plainMarkdown, [' ', '\n', ' \n', 'a ', '*']],
  'two prompts beside one another': [
    (text) => unifiedDiff(text, `a${text}b`, { from: 'before', to: 'after' }),
    ['\n', 'a\n', 'a'],
  ],
  'a registry in Python': [
    (text) =>
      [`X = [${text}`, `X: ${text}`, `X = ${text}`, `from ${text}`].map((written) => {
        try {
          return readPythonAssignment(written, 'X');
        } catch (error) {
          if (error instanceof PythonProblem) return error;
          throw error;
        }
      }),
    ['"a",', '"a" ', '1,', 'a ', '\n', '#', '\\\n', '('],
  ],
  'texts of two sandboxes': [
    (text) => {
      const names = new SandboxNames();
      names.learn(names.agree([{ recorded: '/tmp/aa 1', live: '/tmp/bb 1' }]) ?? []);
      return [names.agree([{ recorded: text, live: `${text}x` }]), names.toLive(text)];
    },
    ['1', '1:', '0x', 'a1', '/tmp/', '/tmp/a', 'pid ', '[1] ', 'Nov 1 ', '2026-11-', '=', '0-', 'tmp.', '12m'],
  ],
  'outputs of two attempts': [(text) => isAlike(text, `${text}x`), ['1', '1.', '1:,', 'a1 ', ' ']],
  'a line for the terminal': [onOneLine, ['\u001b[31m', '\r\n', '\u202e']],
};

describe('a megabyte of the worst text takes moments', () => {
  for (const [name, [read, worst]] of Object.entries(readers)) {
    test(name, () => {
      for (const piece of worst) {
        for (const length of lengths) {
          const text = `${piece.repeat(Math.ceil(length / piece.length))}!`;
          const before = process.cpuUsage();
          read(text);
          const { user, system } = process.cpuUsage(before);
          const seconds = (user + system) / 1e6;
          assert.ok(seconds < secondsMax, `${length} characters of ${JSON.stringify(piece)} took ${seconds} s`);
        }
      }
    });
  }
});
