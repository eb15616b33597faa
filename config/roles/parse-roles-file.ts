import { z } from 'zod';
import { poolNamePattern } from '../../core/names.ts';
import { roleNames, type Roles } from '../../core/roles.ts';
import { retentionTable } from '../settings/checkpoints.ts';
import { required, setting, tableType } from '../settings/setting.ts';
import { ConfigProblems } from '../toml/problems.ts';
import { readFile } from '../toml/read-file.ts';
import { choice, texts } from '../toml/values.ts';

/** The file of roles: who may do what with which runs. */

const name = (what: string) =>
  z
    .string()
    .regex(poolNamePattern)
    .meta({ expected: `the name of ${what}: up to 64 letters, digits, dots, dashes and underscores` });

const sha256 = () =>
  z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .meta({ expected: 'the sha256 of a key, 64 digits 0-9 and a-f; never the key itself' });

const user = {
  role: required(choice(...roleNames), 'what this user may do'),
  team: setting(name('a team'), 'whose runs this user may steer beside their own'),
  logins: setting(texts(), '`user@host`, or `user` on any host; the name itself where there is neither it nor a key'),
  key_sha256: setting(sha256(), 'the sha256 of the key that proves to be this user'),
};

const RolesFile = z.strictObject({
  others: choice(...roleNames).default('viewer'),
  users: z.record(z.string().regex(poolNamePattern), tableType(user)).default({}),
  teams: z.record(z.string().regex(poolNamePattern), tableType({ retention: retentionTable })).default({}),
});

/** Reads a file of roles. Throws `ConfigProblems` with everything that is wrong. */
export function parseRolesFile(text: string, file: string): Roles {
  const read = readFile(text, { file }, { schema: RolesFile, synonyms: {}, keysIn: 'docs/guide/who-may-do-what.md' });
  if (!read.ok) throw new ConfigProblems(read.problems);
  const { reporter } = read;
  const written = read.table as z.infer<typeof RolesFile> | undefined;
  if (written === undefined) throw new ConfigProblems(reporter.inOrder());
  const users = Object.fromEntries(
    Object.entries(written.users).map(([of, { role, team = null, logins, key_sha256: keySha256 = null }]) => [
      of,
      { role, team, logins: logins ?? (keySha256 === null ? [of] : []), keySha256 },
    ]),
  );
  const taken = new Map<string, string>();
  for (const [of, { logins, keySha256 }] of Object.entries(users)) {
    for (const mark of [...logins, ...(keySha256 === null ? [] : [keySha256])]) {
      const other = taken.get(mark);
      if (other !== undefined)
        reporter.add({ path: ['users', of], expected: `a login or key of ${of} alone`, received: `one of ${other}` });
      taken.set(mark, of);
    }
  }
  const problems = reporter.inOrder();
  if (problems.length > 0) throw new ConfigProblems(problems);
  const teams = Object.entries(written.teams).map(([of, { retention: kept }]) => [
    of,
    { rolloutsDays: kept?.rollouts_days ?? null, runDays: kept?.run_days ?? null },
  ]);
  return { file, others: written.others, users, teams: Object.fromEntries(teams) as Roles['teams'] };
}
