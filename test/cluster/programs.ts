/** Programs of a Temporal cluster for tests: the server and its schema tool, built once from their Go module, and PostgreSQL. */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { cacheFolder } from '../../host/cache-folder.ts';
import { buildAlone, buildGoProgram, type GoProgram } from '../../workers/install/go-build.ts';
import { findOnPath } from '../../workers/temporal/temporal-cli.ts';

/** The server that the Temporal CLI of `workers/temporal/temporal-cli.ts` has in it. */
const program: GoProgram = {
  name: 'Temporal server for tests',
  module: 'go.temporal.io/server',
  package: 'cmd/server',
  version: '1.29.1',
  bytesNeeded: 5_000_000_000,
  minutes: 6,
};
const schemaTool = 'cmd/tools/sql';

export interface ClusterPrograms {
  readonly server: string;
  /** `temporal-sql-tool`. */
  readonly schemaTool: string;
  /** Folder with `initdb` and `postgres`. */
  readonly postgres: string;
}

/** The programs, which a first call builds; a sentence that says why they cannot be had here. */
export async function clusterPrograms(log: (line: string) => void): Promise<ClusterPrograms | string> {
  const postgres = await postgresFolder();
  if (postgres === null) return 'there is no PostgreSQL here (Debian: apt-get install postgresql)';
  const folder = path.join(cacheFolder(), `temporal-server-${program.version}`);
  const built = { server: path.join(folder, 'temporal-server'), schemaTool: path.join(folder, 'temporal-sql-tool') };
  const isBuilt = (): boolean => Object.values(built).every((file) => existsSync(file));
  try {
    await buildAlone({ name: program.name, folder, log }, async () => {
      if (isBuilt()) return;
      const beside = [{ package: schemaTool, target: built.schemaTool }];
      await buildGoProgram({ program, folder, target: built.server, beside, log });
    });
  } catch (error) {
    return `the Temporal server could not be built: ${error instanceof Error ? error.message : String(error)}`;
  }
  return { ...built, postgres };
}

/** Distributions keep the server's programs off PATH, a folder for each version. */
async function postgresFolder(): Promise<string | null> {
  const onPath = await findOnPath('initdb', process.env['PATH'] ?? '');
  if (onPath !== null) return path.dirname(onPath);
  const versions = '/usr/lib/postgresql';
  const newestFirst = existsSync(versions) ? readdirSync(versions).toSorted((a, b) => Number(b) - Number(a)) : [];
  return (
    newestFirst
      .map((version) => path.join(versions, version, 'bin'))
      .find((bin) => existsSync(path.join(bin, 'initdb'))) ?? null
  );
}

/** The user that PostgreSQL runs as: it refuses to run as root. Nothing where this process is not root. */
export function postgresUser(): { readonly uid: number; readonly gid: number } | Record<string, never> {
  if (process.getuid?.() !== 0) return {};
  for (const name of ['postgres', 'nobody']) {
    try {
      const [uid, gid] = ['-u', '-g'].map((which) => Number(execFileSync('id', [which, name], { stdio: 'pipe' })));
      return { uid: uid!, gid: gid! };
    } catch {
      // There is no such user.
    }
  }
  throw new Error('PostgreSQL does not run as root, and there is neither a user postgres nor nobody');
}
