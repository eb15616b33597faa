import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readMachine, refusePlatform, type MachineFacts } from '../../setup/platform.mjs';

const good: MachineFacts = { platform: 'linux', arch: 'x64', node: '22.11.0', glibc: '2.36' };

test('the machines we promise are accepted', () => {
  for (const node of ['20.19.0', '22.0.0', '24.9.1']) {
    assert.equal(refusePlatform({ ...good, node }), null);
    assert.equal(refusePlatform({ ...good, node, arch: 'arm64', glibc: '2.28' }), null);
    assert.equal(refusePlatform({ platform: 'darwin', arch: 'arm64', node, glibc: null }), null);
  }
});

test('every other machine is refused in one line that says what to use', () => {
  const refused: readonly [Partial<MachineFacts>, RegExp][] = [
    [{ platform: 'win32' }, /WSL2/],
    [{ platform: 'darwin', arch: 'x64', glibc: null }, /Intel/],
    [{ platform: 'freebsd' }, /freebsd/],
    [{ arch: 'ia32' }, /ia32/],
    [{ glibc: null }, /Alpine/],
    [{ glibc: '2.27' }, /2\.28.*2\.27/],
    [{ glibc: '2.9' }, /2\.28.*2\.9/],
    [{ node: '20.18.3' }, /20\.19.*20\.18\.3/],
    [{ node: '18.20.0' }, /18\.20\.0/],
    [{ node: '21.7.0' }, /21\.7\.0/],
    [{ node: '23.1.0' }, /23\.1\.0/],
  ];
  for (const [facts, expected] of refused) {
    const refusal = refusePlatform({ ...good, ...facts });
    assert.match(refusal ?? 'accepted', expected);
    assert.ok(refusal?.includes('\n') === false);
  }
});

test('this machine is one of them', () => assert.equal(refusePlatform(readMachine()), null));
