import type { JsonValue } from '../../../../core/json-value.ts';
import type { Budget } from '../../../../core/settings/budgets.ts';
import type { Turn } from '../../../../core/rl/rollout/rollout.ts';
import type { Endpoint } from '../../../inference/index.ts';
import type { Policy, RolloutNotes } from '../../types.ts';

/**
 * The address in front of the policy for one rollout of a program that owns its loop. The program asks it as it would
 * ask OpenAI or Anthropic; each call for the policy's model is one turn, which is in the store before its answer leaves.
 *
 * After a death the program starts again. A call that an earlier attempt has finished is answered with the stored turn
 * (`Policy.earlier`); what differs between two sandboxes (temporary paths, times, process ids) is mapped in both
 * directions. At the first call that differs, the rest of that branch is set aside.
 */
export interface CaptureOptions {
  readonly policy: Policy;
  /** Name of the policy's model, as programs ask for it. */
  readonly model: string;
  /** Names under which it is asked as well: programs that insist on names of their own. `*` = any that is not in `others`. */
  readonly aliases?: readonly string[];
  /** Other models by name. Their calls are passed on, counted apart, and never trained. */
  readonly others?: Readonly<Record<string, OtherModel>>;
  /** Ends calls under way; the address then answers 503. */
  readonly signal: AbortSignal;
  /**
   * Where the program's effects (`POST /effects/KEY`) and answers of other models are written down, so that a later
   * attempt gets the same, and with which turn each attempt began; missing = it has no effects, and other models are
   * asked again.
   */
  readonly notes?: RolloutNotes;
  /** The rollout's budget: calls of other models are reserved in it. */
  readonly budget?: Budget;
  readonly beside?: BesideModel;
  /** The snapshot in which the program goes on; missing = it begins at the start. */
  readonly resumed?: ResumedCalls;
  /** Values that the program has and that no turn may keep, beside the rollout's key. */
  readonly secrets?: readonly string[];
  /** Called with every turn, sampled or recalled, before its answer leaves. */
  readonly onTurn?: (turn: Turn, call: CallTime) => void;
}

export interface CallTime {
  readonly isRecalled: boolean;
  /** From the call to its turn. */
  readonly seconds: number;
}

/** The calls that a program had heard when its snapshot was taken. */
export interface ResumedCalls {
  /** Ids of its calls, in the order in which they were answered. */
  readonly calls: readonly string[];
  /** Names that its sandbox has of its own, and those under which the model knows the same. */
  readonly names: readonly { readonly live: string; readonly recorded: string }[];
  /** Ids of those whose conversation begins with instructions that the program gives anew with each call; missing = none. */
  readonly instructed?: readonly string[];
}

/** Another model, as `openEndpoint` opens it. */
export interface OtherModel extends Pick<Endpoint, 'chat'> {
  /** Most tokens of an answer, whatever the program asks for. */
  readonly maxTokens?: number;
}

/** What lies beside the model, with the same key. */
export interface BesideModel {
  /** GET /budget: what the rollout has left of each limit. Missing where nothing is limited, which is said as `{}`. */
  budget?(): JsonValue;
}

export interface Capture {
  /** Path of the Unix socket, in a folder of its own that only this user may enter. */
  readonly socket: string;
  /** Bearer token or `x-api-key` of this rollout; compared in constant time. */
  readonly key: string;
  /** Opens the address on the loopback as well, for sandboxes that cannot reach the socket; the port. */
  listenOnLoopback(): Promise<number>;
  /**
   * Finished turns of this attempt whose answers the program received, recalled ones included, in the order in which they
   * finished.
   */
  readonly turns: readonly Turn[];
  readonly calls: CallCounts;
  /** The state that is stored beside a snapshot of the sandbox. */
  heard(): ResumedCalls;
  /** Requests and effects that the program has begun at this address and that have not ended. */
  underWay(): UnderWay;
  /** Fields of its calls that had no effect on the policy: the run's file decides, or nobody knows them. */
  readonly ignored: readonly string[];
  /**
   * Outputs of tools that differed from those of an earlier attempt and count as the same, by the tool's name: the model
   * sees the recorded ones.
   */
  mapped(): Readonly<Record<string, number>>;
  /** What an earlier attempt finished and this one did not ask for (so far), and where the two first differed. */
  setAside(): SetAside | null;
  /**
   * The error with which the rollout should end: the policy failed through no fault of the program, or refused several
   * calls in a row.
   */
  readonly failure: unknown;
  /** Error of the last call for the policy, if that was refused (too long, a limit was reached); else undefined. */
  readonly refusal: unknown;
  /** Raised when `failure` is set. */
  readonly ended: AbortSignal;
  /** Ends the calls under way, whose turns need not be finished, and removes the socket. Idempotent. */
  close(): Promise<void>;
}

export interface UnderWay {
  /** Requests of all kinds so far, ended or not. */
  readonly requests: number;
  /** Requests that are not answered: calls of the policy and of other models, and those about effects. */
  readonly open: number;
  /** Effects that the program was told to make, and has not settled. */
  readonly effects: number;
}

export interface CallCounts {
  /** Calls for the policy that were sampled, and that were answered from the store. */
  readonly sampled: number;
  readonly recalled: number;
  /** Calls that were finished before the snapshot in which the program goes on. */
  readonly kept: number;
  /** Calls for other models, and those of them that were answered from the notes. */
  readonly others: number;
  readonly othersRecalled: number;
  /** Requests that were refused: bad bodies, unknown models, prompts that are too long. */
  readonly refused: number;
  /** Tokens of other models, as their servers report them. */
  readonly otherUsage: { readonly promptTokens: number; readonly completionTokens: number };
}

export interface SetAside {
  /** Ids of the turns (`Turn.call.id`), in the order in which they were sampled. */
  readonly turns: readonly string[];
  readonly tokens: number;
  /** The first call that differs: the turn that it follows, and both texts from shortly before the difference. */
  readonly first: { readonly after: string | null; readonly was: string; readonly is: string } | null;
}
