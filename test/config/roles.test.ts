/** The file of roles: who may do what, and what a refusal says. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'node:test';
import { parseRolesFile } from '../../config/roles/parse-roles-file.ts';
import { personOfKey, personOfLogin, refusalOf, type RunOwner } from '../../core/roles.ts';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

const roles = parseRolesFile(
  `
[users.ann]
role = "operator"
team = "research"
logins = ["ann@laptop", "ann@gpu-1"]

[users.ben]
role = "operator"
team = "vision"

[users.carl]
role = "operator"
team = "research"

[users.eve]
role = "admin"
key_sha256 = "${sha256('a long key of eve')}"
`,
  'roles.toml',
);
const ofAnn: RunOwner = { who: 'ann@laptop', team: null };
const mayPause = (login: string, owner: RunOwner | null) =>
  refusalOf(roles, personOfLogin(roles, login), { what: 'pause', of: 'run', run: 'words', owner });

describe('with a file of roles', () => {
  test('the owner of a run and operators of its team steer it; others are told who may', () => {
    assert.equal(mayPause('ann@laptop', ofAnn), null);
    assert.equal(mayPause('ann@gpu-1', ofAnn), null);
    assert.equal(mayPause('carl@anywhere', ofAnn), null);
    assert.equal(
      mayPause('ben@desk', ofAnn),
      'ben is an operator of team vision (roles.toml): words belongs to ann, team research, so pause asks for the role operator of its owner or team (ann, carl), or the role admin (eve).',
    );
    assert.equal(mayPause('ben@desk', { who: 'ann@laptop', team: 'vision' }), null, "the run's [queue] team counts");
    assert.equal(
      mayPause('stranger@laptop', ofAnn),
      'stranger@laptop is a viewer (roles.toml): words belongs to ann, team research, so pause asks for the role operator of its owner or team (ann, carl), or the role admin (eve).',
    );
  });

  test('a run that nobody is known to own, and pools, are for admins', () => {
    assert.match(
      mayPause('ann@laptop', null)!,
      /who owns words is not known, so pause asks for the role admin \(eve\)/,
    );
    const eve = personOfKey(roles, sha256('a long key of eve'))!;
    assert.equal(refusalOf(roles, eve, { what: 'pause', of: 'run', run: 'words', owner: null }), null);
    const ann = personOfLogin(roles, 'ann@laptop');
    assert.match(
      refusalOf(roles, ann, { what: 'pool set', of: 'all' })!,
      /^ann is .*pool set asks for the role admin \(eve\)/,
    );
    assert.equal(refusalOf(roles, ann, { what: 'train', of: 'own' }), null);
    assert.match(
      refusalOf(roles, personOfLogin(roles, 'zoe@desk'), { what: 'train', of: 'own' })!,
      /^zoe@desk is a viewer .*train asks for the role operator or admin \(ann, ben, carl, eve\)/,
    );
  });

  test('a login that looks like another is not that other', () => {
    // A user of the system may be called as somebody in the file is: the host tells them apart, where the file names hosts.
    for (const login of ['ann@desk', 'Ann@laptop', 'ann@laptop.evil', 'ann ', 'ann@laptop@laptop'])
      assert.notEqual(personOfLogin(roles, login).name, 'ann', login);
    // Who has a key alone is nobody's login, and a key of nobody is nobody.
    for (const login of ['eve', 'eve@laptop', 'eve@eve'])
      assert.equal(personOfLogin(roles, login).role, 'viewer', login);
    for (const key of ['', 'eve', 'a long key of eve ', sha256('a long key of eve')])
      assert.equal(personOfKey(roles, sha256(key)), null, key);
    // A name of the file begins no login of another.
    assert.equal(personOfLogin(roles, '__proto__@laptop').role, 'viewer');
    assert.equal(mayPause('ben@desk', { who: 'constructor', team: null })!.includes('belongs to constructor'), true);
  });

  test('what is wrong in it is told with its line', () => {
    const wrong = (text: string) => {
      try {
        parseRolesFile(text, 'roles.toml');
      } catch (error) {
        return (error as Error).message;
      }
      return 'nothing';
    };
    assert.match(
      wrong('[users.ann]\nrole = "boss"\n'),
      /roles\.toml:2:1 {2}users\.ann\.role\n {4}expected {2}one of "viewer", "operator", "admin"/,
    );
    assert.match(wrong('[users.ann]\nrole = "admin"\nkey = "secret"\n'), /key/);
    assert.match(wrong('[users.ann]\nrole = "admin"\nkey_sha256 = "secret"\n'), /never the key itself/);
    assert.match(
      wrong('[users.ann]\nrole = "admin"\n[users.bob]\nrole = "viewer"\nlogins = ["ann"]\n'),
      /a login or key of bob alone.*one of ann/s,
    );
  });
});
