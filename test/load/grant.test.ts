/** Workers of the user's own server accept what the user names on a command line, and nothing else. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { grantNamed, namedByEnvironments } from '../../load/grants/grant.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import { grantedAt, grants, requireGrant } from '../../host/grants.ts';
import { trustedFile } from '../../host/trusted-files.ts';

test('files outside of the project and Python without a sandbox are noted once, for this user alone', (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-grant-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const project = path.join(folder, 'project');
  mkdirSync(project);
  const [inside, outside] = [path.join(project, 'in.toml'), path.join(folder, 'out.ts')];
  for (const file of [inside, outside]) writeFileSync(file, '', { mode: 0o644 });
  const environment = { [trustedRootsVariable]: project };
  assert.throws(() => trustedFile(outside, 'It', environment), /is outside/);
  assert.throws(() => requireGrant(grants.noSandbox, 'It', environment), /named at a command line/);

  grantNamed(project, [inside]);
  assert.throws(() => readFileSync(grantedAt(project)), /ENOENT/);
  const environments = [
    { id: outside, args: {} },
    { id: 'math-python', args: { sandbox: 'none' } },
  ];
  for (let turn = 0; turn < 2; turn += 1) grantNamed(project, ['in.toml', ...namedByEnvironments(environments)]);
  assert.equal(readFileSync(grantedAt(project), 'utf8'), `${outside}\nsandbox-none\n`);
  assert.equal(statSync(grantedAt(project)).mode & 0o777, 0o600);
  assert.equal(statSync(path.dirname(grantedAt(project))).mode & 0o077, 0);
  assert.equal(trustedFile(outside, 'It', environment), outside);
  requireGrant(grants.noSandbox, 'It', environment);
});
