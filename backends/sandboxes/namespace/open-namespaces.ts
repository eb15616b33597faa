import { RatchetError } from '../../../core/errors.ts';
import { answerOf } from '../../../host/child-progress.ts';
import { trustedInterpreter } from '../../../host/trusted-files.ts';
import { namespacesNeeded } from '../isolated-child.ts';
import type { SnapshotPlace } from '../types.ts';
import { NamespaceProvider } from './namespace-provider.ts';

export interface NamespaceOptions {
  /** The interpreter of the supervisor: a command or a path. */
  readonly python: string;
  readonly snapshots: SnapshotPlace;
}

/** Finds out once whether sandboxes can be had here. Throws ConfigInvalid with the missing part and advice. */
export async function openNamespaceProvider({ python, snapshots }: NamespaceOptions): Promise<NamespaceProvider> {
  const real = await findPython(trustedInterpreter(python, 'The interpreter of sandboxes'));
  // Limits of processes do not bind root, even in a namespace of its own: it becomes another user if it may.
  if (process.getuid?.() === 0) {
    const provider = new NamespaceProvider({ python: real, isOtherUser: true, snapshots });
    if ((await troubleOf(provider)) === null) return provider;
  }
  const provider = new NamespaceProvider({ python: real, isOtherUser: false, snapshots });
  const trouble = await troubleOf(provider);
  if (trouble === null) return provider;
  throw new RatchetError(
    'ConfigInvalid',
    `There are no sandboxes of namespaces here: expected ${namespacesNeeded}; where /proc is masked, also --security-opt systempaths=unconfined. [env.sandbox] kind = "docker" or "ssh" takes them from elsewhere. What came instead:\n  ${trouble.message.trim()}`,
    { cause: trouble },
  );
}

/** Begins a sandbox and a program in it: another user may not be able to read the interpreter. */
async function troubleOf(provider: NamespaceProvider): Promise<Error | null> {
  const name = `try-${process.pid}-${Date.now().toString(36)}`;
  const limits = { memoryMb: 256, diskMb: 1, seconds: 60 };
  try {
    const sandbox = await provider.create({
      name,
      limits,
      network: 'route',
      labels: { project: 'ratchet', owner: name },
    });
    const { code, stderr } = await sandbox.exec({ argv: ['true'], timeoutS: 30, outputBytesMax: 1_000 });
    return code === 0 ? null : new Error(stderr);
  } catch (error) {
    return error as Error;
  } finally {
    await provider.close();
  }
}

/** The real interpreter: the one on PATH may be a script that chooses one. */
async function findPython(command: string): Promise<string> {
  const answer = await answerOf(command, ['-c', 'import sys; assert sys.version_info >= (3, 9); print(sys.executable)'], process.env); // prettier-ignore
  if (answer !== null) return answer.trim();
  throw new RatchetError(
    'ConfigInvalid',
    `Expected a Python 3.9 or newer as ${JSON.stringify(command)}, which looks after sandboxes; it cannot be started. Install python3.`,
  );
}
