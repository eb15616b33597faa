/** From the least to the most: a role may do what those before it may. */
export const roleNames = ['viewer', 'operator', 'admin'] as const;
export type Role = (typeof roleNames)[number];

/** What a file of roles says. */
export interface Roles {
  /** Its path, for messages. */
  readonly file: string;
  /** Role of those whom it does not name. */
  readonly others: Role;
  readonly users: Readonly<Record<string, NamedUser>>;
  /** How long the runs of a team are kept, where their own files do not say it. */
  readonly teams: Readonly<Record<string, Retention>>;
}

/** Days; null: as if it were not there. */
export interface Retention {
  readonly rolloutsDays: number | null;
  readonly runDays: number | null;
}

export interface NamedUser {
  readonly role: Role;
  readonly team: string | null;
  /** `user@host`, or `user` on any host: these are this user without a key. */
  readonly logins: readonly string[];
  /** Of the key that proves to be this user; null without one. */
  readonly keySha256: string | null;
}

/** Somebody who asks for something. */
export interface Person {
  /** The name in the file of roles; else `user@host`. */
  readonly name: string;
  readonly role: Role;
  readonly team: string | null;
}

/** Who began a run, by the name that is in its record of changes, and the team that its settings name. */
export interface RunOwner {
  readonly who: string;
  readonly team: string | null;
}

/** What is asked for. `owner`: null where it is not known. */
export type Wish =
  | { readonly what: string; readonly of: 'run'; readonly run: string; readonly owner: RunOwner | null }
  /** Begins a run, a sweep or a fork, or another thing of one's own. */
  | { readonly what: string; readonly of: 'own' }
  /** Pools, and what is of everybody. */
  | { readonly what: string; readonly of: 'all' };

/** Whom a login (`user@host`) is. */
export function personOfLogin(roles: Roles, login: string): Person {
  const [user = login] = login.split('@', 1);
  const found = Object.entries(roles.users).find(([, { logins }]) => logins.includes(login));
  const anyHost = Object.entries(roles.users).find(([, { logins }]) => logins.includes(user));
  return personOf(found ?? anyHost) ?? { name: login, role: roles.others, team: null };
}

/** Whom a key is of; null for a key of nobody. */
export function personOfKey(roles: Roles, sha256: string): Person | null {
  return personOf(Object.entries(roles.users).find(([, user]) => user.keySha256 === sha256));
}

function personOf(found: readonly [string, NamedUser] | undefined): Person | null {
  return found === undefined ? null : { name: found[0], role: found[1].role, team: found[1].team };
}

/** Whom a name in a record of changes is: a name in the file, of somebody who had its key, or a login. */
function personNamed(roles: Roles, who: string): Person {
  const user = Object.hasOwn(roles.users, who) ? roles.users[who]! : null;
  return user === null ? personOfLogin(roles, who) : { name: who, role: user.role, team: user.team };
}

/** The team that a run's settings name, else that of its owner; null without either. */
export function teamOf(roles: Roles | null, owner: RunOwner | null, team: string | null): string | null {
  return team ?? owner?.team ?? (roles === null || owner === null ? null : personNamed(roles, owner.who).team);
}

/** What the run's file says, and what it does not say as its team has it. */
export function retentionOf(roles: Roles | null, own: Retention | undefined, team: string | null): Retention {
  const ofTeam = roles !== null && team !== null && Object.hasOwn(roles.teams, team) ? roles.teams[team] : undefined;
  return {
    rolloutsDays: own?.rolloutsDays ?? ofTeam?.rolloutsDays ?? null,
    runDays: own?.runDays ?? ofTeam?.runDays ?? null,
  };
}

/** Why a person may not do this; null when they may. */
export function refusalOf(roles: Roles, person: Person, wish: Wish): string | null {
  const owner = wish.of === 'run' && wish.owner !== null ? personNamed(roles, wish.owner.who) : null;
  const team = wish.of === 'run' ? (wish.owner?.team ?? owner?.team ?? null) : null;
  const isOwn = wish.of === 'own' || owner?.name === person.name || (team !== null && team === person.team);
  if (person.role === 'admin' || (person.role === 'operator' && isOwn)) return null;
  const who = `${person.name} is ${said(person.role)}${person.team === null ? '' : ` of team ${person.team}`} (${roles.file})`;
  const admins = `role admin (${whoHas(roles, ({ role }) => role === 'admin')})`;
  if (wish.of === 'all') return `${who}: ${wish.what} asks for the ${admins}.`;
  if (wish.of === 'own') {
    const operators = whoHas(roles, ({ role }) => role !== 'viewer');
    return `${who}: ${wish.what} asks for the role operator or admin (${operators}).`;
  }
  if (owner === null) return `${who}: who owns ${wish.run} is not known, so ${wish.what} asks for the ${admins}.`;
  const owners = whoHas(
    roles,
    (user, name) => user.role === 'operator' && (name === owner.name || (team !== null && user.team === team)),
  );
  const of = `${owner.name}${team === null ? '' : `, team ${team}`}`;
  return `${who}: ${wish.run} belongs to ${of}, so ${wish.what} asks for the role operator of its owner or team (${owners}), or the ${admins}.`;
}

function said(role: Role): string {
  return role === 'viewer' ? 'a viewer' : role === 'operator' ? 'an operator' : 'an admin';
}

function whoHas(roles: Roles, has: (user: NamedUser, name: string) => boolean): string {
  const names = Object.entries(roles.users).flatMap(([name, user]) => (has(user, name) ? [name] : []));
  return names.length === 0 ? 'nobody has it' : names.join(', ');
}
