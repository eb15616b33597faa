import assert from 'node:assert/strict';
import { test } from 'node:test';
import countTests from '../../setup/test-counts-reporter.mjs';
import { chooseTests } from '../../setup/test.mjs';

const quick = ['/p/test/a.test.ts', '/p/test/core/b.test.ts', '/p/test/core/c.e2e.test.ts'];
const slow = ['/p/test/core/d.slow.test.ts', '/p/test/e2e/e.slow.test.ts', '/p/test/faults/f.faults.test.ts'];
const all = [...quick, ...slow];

test('without arguments what tells soon is tested, units apart from what needs a server', () => {
  assert.deepEqual(chooseTests([], all), { units: quick.slice(0, 2), endToEnd: quick.slice(2) });
});

test('all are all, the slow ones and the fault matrix included', () => {
  const { units, endToEnd } = chooseTests(['all'], all);
  assert.deepEqual(units, [...quick.slice(0, 2), slow[0]]);
  assert.deepEqual(endToEnd, [quick[2], slow[1], slow[2]]);
  assert.deepEqual(chooseTests(['e2e'], all).endToEnd, [quick[2], slow[1]]);
});

test('files and folders can be named; a name that fits nothing is refused', () => {
  assert.deepEqual(chooseTests(['/p/test/a.test.ts'], all), { units: quick.slice(0, 1), endToEnd: [] });
  assert.deepEqual(chooseTests(['/p/test/core'], all), { units: [quick[1], slow[0]], endToEnd: quick.slice(2) });
  assert.throws(() => chooseTests(['/p/test/cor'], all), /no test in \/p\/test\/cor/);
});

test('the sum counts what was cancelled as failed and what was skipped as neither', async () => {
  const said = ['tests 9', 'suites 1', 'pass 5', 'fail 1', 'cancelled 1', 'skipped 1', 'todo 1', 'duration_ms 12.5'];
  async function* events() {
    for (const message of said) yield { type: 'test:diagnostic', data: { nesting: 0, message } };
    yield { type: 'test:diagnostic', data: { nesting: 1, message: 'pass 99' } };
  }
  let text = '';
  for await (const part of countTests(events())) text += part;
  assert.deepEqual(JSON.parse(text), { passed: 5, failed: 2, skipped: 2 });
});
