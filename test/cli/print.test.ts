/** Text from files, folders, servers and models of others cannot control the terminal. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { escaped, jsonText, onOneLine, withoutControls } from '../../cli/output/plain-text.ts';

const steering = [
  '\u0000',
  '\u0007',
  '\r',
  '\u001b[2J',
  '\u007f',
  '\u009b2J',
  '\u061c',
  '\u200f',
  '\u2028',
  '\u202e',
  '\u2066',
];

test('what would steer a terminal is taken out of text, and escaped in JSON and TOML, which read as before', () => {
  for (const sign of steering) {
    const text = `a${sign}b`;
    for (const shown of [
      withoutControls(text),
      onOneLine(text),
      jsonText({ [text]: text }),
      escaped(JSON.stringify(text)),
    ])
      assert(!shown.includes(sign[0]!), JSON.stringify(shown));
    assert.deepEqual(JSON.parse(jsonText({ [text]: text }, 2)), { [text]: text });
    assert.equal(JSON.parse(escaped(JSON.stringify(text))), text);
  }
  assert.equal(withoutControls('a\nb'), 'a\nb');
});

/** Each takes out itself what steers, or draws the screen from texts that are already without. */
const writers = [
  'cli/output/print.ts',
  'cli/output/clock.ts', // `stamped` takes it out
  'cli/follow/audience.ts', // a clock's lines, on stderr
  'cli/run-command.ts', // before there is anything to print with
  'cli/commands/run/logs.ts', // piece by piece
  'cli/commands/prepare/config.ts', // TOML, escaped
  'cli/commands/run/status.ts', // must know when it is written
  'cli/commands/services/temporal.ts', // our own words
  'cli/output/reporter.ts', // a clock's lines
];

test('a command writes by `print` and its like, which leave nothing that steers', () => {
  const root = fileURLToPath(new URL('../../', import.meta.url));
  const files = readdirSync(path.join(root, 'cli'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts'))
    .map((file) => `cli/${file.split(path.sep).join('/')}`);
  const found = files.filter((file) =>
    /\bprocess\.std(?:out|err)\)?\.write\(|\bconsole\.\w+\(/.test(readFileSync(path.join(root, file), 'utf8')),
  );
  assert.deepEqual(
    found.filter((file) => !writers.includes(file)),
    [],
  );
});
