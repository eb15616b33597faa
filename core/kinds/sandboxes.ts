import { kindsOf } from './kinds-of.ts';

/**
 * Facts about a kind of sandbox before it is opened. Messages, relations between settings and the handling of leases use
 * a trait, never a kind. Its keys are in config/settings/sandboxes.ts, its adapter in backends/sandboxes/.
 */
export interface SandboxTraits {
  /** Description in the list of all kinds. */
  readonly is: string;
  /** Author of its code. Commands that only read a file never run the user's code, and a person must have named it. */
  readonly code: 'ratchet' | 'user';
  /** Prerequisites, for people. */
  readonly install: string;
  /** Settings that it needs beside the kind, for people. */
  readonly needs: string;
  /** Whether it can hold a sandbox to its one route; else `network = "open"` has to be said. */
  readonly isolatesNetwork: boolean;
  /** Whether the work folder can be saved, and a new sandbox begun from it. */
  readonly snapshots: boolean;
  /** Whether a sandbox is begun from an image that the file names; else it sees the programs of its machine. */
  readonly takesImage: boolean;
  /** Whether it cannot be begun without one. */
  readonly needsImage: boolean;
  /** Whether folders of this machine can be shown to a sandbox (`SandboxRequest.folders`). */
  readonly showsFolders: boolean;
  /** Whether a sandbox ends with the process that created it. Others outlive it, and are found by their name. */
  readonly endsWithWorker: boolean;
}

export const sandboxes = {
  namespace: {
    is: 'namespaces of this machine',
    code: 'ratchet',
    install: 'Linux with user namespaces, `unshare` and `setpriv` of util-linux, and python3',
    needs: 'nothing',
    isolatesNetwork: true,
    snapshots: true,
    takesImage: false,
    needsImage: false,
    showsFolders: true,
    endsWithWorker: true,
  },
  docker: {
    is: 'containers of Docker or Podman',
    code: 'ratchet',
    install: 'Docker or Podman, whose socket this user may open',
    needs: '`image`; `socket`, where it is not the usual one',
    isolatesNetwork: true,
    snapshots: true,
    takesImage: true,
    needsImage: true,
    showsFolders: true,
    endsWithWorker: false,
  },
  ssh: {
    is: 'folders of a host that is reached by ssh',
    code: 'ratchet',
    install: '`ssh` here; `sh`, `tar` and `setsid` there',
    needs: '`host`, and `network = "open"`',
    isolatesNetwork: false,
    snapshots: true,
    takesImage: false,
    needsImage: false,
    showsFolders: false,
    endsWithWorker: false,
  },
  module: {
    is: 'a provider of your own',
    code: 'user',
    install: 'what its file imports',
    needs: '`import`: the file with it',
    isolatesNetwork: true,
    snapshots: true,
    takesImage: true,
    needsImage: false,
    showsFolders: false,
    endsWithWorker: false,
  },
} as const satisfies Readonly<Record<string, SandboxTraits>>;

export type SandboxKind = keyof typeof sandboxes;
export const sandboxKinds = kindsOf(sandboxes);

export function sandboxTraits({ kind }: { readonly kind: SandboxKind }): SandboxTraits {
  return sandboxes[kind];
}
