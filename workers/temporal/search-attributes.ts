import { grpcCode, grpcCodeOf } from './grpc-code.ts';

/** Search attributes by which runs are found, with their types. A workflow that sets an unregistered one hangs. */
export const searchAttributes = { RatchetRun: 'Keyword', RatchetStep: 'Int', RatchetReward: 'Double' } as const;
export type SearchAttribute = keyof typeof searchAttributes;

const names = Object.keys(searchAttributes) as SearchAttribute[];
/** Only a namespace with all of them accepts it. */
const query = "RatchetRun = 'none' AND RatchetStep = 0 AND RatchetReward = 0.0";

const refusals: readonly number[] = [grpcCode.permissionDenied, grpcCode.unimplemented, grpcCode.unauthenticated];

interface Asked {
  /** Asks the operator service, which Temporal Cloud lacks and not every user may call. */
  readonly list: () => Promise<object>;
  readonly count: (query: string) => Promise<unknown>;
}

/** Null: the namespace has them all. */
type Missing = null | {
  readonly names: readonly SearchAttribute[];
  /** Whether exactly these are missing. Else some of them, or they may not be asked for. */
  readonly isExact: boolean;
};

/**
 * The search attributes of runs that a namespace lacks. If that may not be asked, all of them: the memo serves as well.
 */
export async function missingSearchAttributes({ list, count }: Asked): Promise<Missing> {
  try {
    const found = await list();
    const missing = names.filter((name) => !(name in found));
    return missing.length === 0 ? null : { names: missing, isExact: true };
  } catch (error) {
    if (!refusals.includes(grpcCodeOf(error))) throw error;
  }
  try {
    await count(query);
    return null;
  } catch (error) {
    if ([grpcCode.invalidArgument, ...refusals].includes(grpcCodeOf(error))) return { names, isExact: false };
    throw error;
  }
}

interface Place {
  readonly address: string;
  readonly namespace: string;
}

/** What a run does without them. */
export function lackOfSearchAttributes({ namespace }: Pick<Place, 'namespace'>, missing: NonNullable<Missing>): string {
  const listed = missing.names.join(', ');
  const lacks = missing.isExact
    ? `The Temporal namespace ${namespace} has no search attributes ${listed}`
    : `The Temporal namespace ${namespace} lacks search attributes (some of ${listed}), or does not let these credentials see them`;
  return `${lacks}: runs are found by their ids only, and tell their progress in their memo`;
}

/** The command of a namespace's administrator that makes them. Temporal Cloud has a tool of its own for it. */
export function commandForSearchAttributes({ address, namespace }: Place, missing: NonNullable<Missing>): string {
  const typed = missing.names.map((name) => [name, searchAttributes[name]] as const);
  const isCloud = /\.(?:tmprl\.cloud|api\.temporal\.io)(?::\d+)?$/.test(address);
  return isCloud
    ? `tcld namespace search-attributes add --namespace ${namespace} ${typed.map(([name, type]) => `--search-attribute ${name}=${type}`).join(' ')}`
    : `temporal operator search-attribute create --address ${address} --namespace ${namespace} ${typed.map(([name, type]) => `--name ${name} --type ${type}`).join(' ')}`;
}
