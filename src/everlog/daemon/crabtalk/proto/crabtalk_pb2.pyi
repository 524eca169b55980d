from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_DELTA: _ClassVar[AgentEventKind]
    THINKING_DELTA: _ClassVar[AgentEventKind]
    TOOL_START: _ClassVar[AgentEventKind]
    TOOL_RESULT: _ClassVar[AgentEventKind]
    TOOLS_COMPLETE: _ClassVar[AgentEventKind]
    DONE: _ClassVar[AgentEventKind]
TEXT_DELTA: AgentEventKind
THINKING_DELTA: AgentEventKind
TOOL_START: AgentEventKind
TOOL_RESULT: AgentEventKind
TOOLS_COMPLETE: AgentEventKind
DONE: AgentEventKind

class ClientMessage(_message.Message):
    __slots__ = ("send", "stream", "reply_to_ask", "sessions", "kill", "compact", "list_conversations", "list_providers", "set_provider", "delete_provider", "set_active_model", "list_provider_presets", "list_mcps", "set_local_mcps", "list_agents", "get_agent", "create_agent", "update_agent", "delete_agent", "install_package", "uninstall_package", "list_packages", "list_skills", "start_service", "stop_service", "service_logs", "create_cron", "delete_cron", "list_crons", "ping", "get_config", "reload", "get_stats", "subscribe_events", "set_enabled", "list_models", "search_hub", "get_conversation_history", "delete_conversation")
    SEND_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_ASK_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    LIST_CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    LIST_PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    SET_PROVIDER_FIELD_NUMBER: _ClassVar[int]
    DELETE_PROVIDER_FIELD_NUMBER: _ClassVar[int]
    SET_ACTIVE_MODEL_FIELD_NUMBER: _ClassVar[int]
    LIST_PROVIDER_PRESETS_FIELD_NUMBER: _ClassVar[int]
    LIST_MCPS_FIELD_NUMBER: _ClassVar[int]
    SET_LOCAL_MCPS_FIELD_NUMBER: _ClassVar[int]
    LIST_AGENTS_FIELD_NUMBER: _ClassVar[int]
    GET_AGENT_FIELD_NUMBER: _ClassVar[int]
    CREATE_AGENT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_AGENT_FIELD_NUMBER: _ClassVar[int]
    DELETE_AGENT_FIELD_NUMBER: _ClassVar[int]
    INSTALL_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    UNINSTALL_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    LIST_PACKAGES_FIELD_NUMBER: _ClassVar[int]
    LIST_SKILLS_FIELD_NUMBER: _ClassVar[int]
    START_SERVICE_FIELD_NUMBER: _ClassVar[int]
    STOP_SERVICE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_LOGS_FIELD_NUMBER: _ClassVar[int]
    CREATE_CRON_FIELD_NUMBER: _ClassVar[int]
    DELETE_CRON_FIELD_NUMBER: _ClassVar[int]
    LIST_CRONS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    GET_CONFIG_FIELD_NUMBER: _ClassVar[int]
    RELOAD_FIELD_NUMBER: _ClassVar[int]
    GET_STATS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SET_ENABLED_FIELD_NUMBER: _ClassVar[int]
    LIST_MODELS_FIELD_NUMBER: _ClassVar[int]
    SEARCH_HUB_FIELD_NUMBER: _ClassVar[int]
    GET_CONVERSATION_HISTORY_FIELD_NUMBER: _ClassVar[int]
    DELETE_CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    send: SendMsg
    stream: StreamMsg
    reply_to_ask: ReplyToAsk
    sessions: Sessions
    kill: KillMsg
    compact: CompactMsg
    list_conversations: ListConversationsMsg
    list_providers: ListProviders
    set_provider: SetProviderMsg
    delete_provider: DeleteProviderMsg
    set_active_model: SetActiveModelMsg
    list_provider_presets: ListProviderPresets
    list_mcps: ListMcps
    set_local_mcps: SetLocalMcpsMsg
    list_agents: ListAgents
    get_agent: GetAgentMsg
    create_agent: CreateAgentMsg
    update_agent: UpdateAgentMsg
    delete_agent: DeleteAgentMsg
    install_package: InstallPackageMsg
    uninstall_package: UninstallPackageMsg
    list_packages: ListPackages
    list_skills: ListSkills
    start_service: StartServiceMsg
    stop_service: StopServiceMsg
    service_logs: ServiceLogsMsg
    create_cron: CreateCronMsg
    delete_cron: DeleteCronMsg
    list_crons: ListCrons
    ping: Ping
    get_config: GetConfig
    reload: Reload
    get_stats: GetStats
    subscribe_events: SubscribeEvents
    set_enabled: SetEnabledMsg
    list_models: ListModels
    search_hub: SearchHubMsg
    get_conversation_history: GetConversationHistoryMsg
    delete_conversation: DeleteConversationMsg
    def __init__(self, send: _Optional[_Union[SendMsg, _Mapping]] = ..., stream: _Optional[_Union[StreamMsg, _Mapping]] = ..., reply_to_ask: _Optional[_Union[ReplyToAsk, _Mapping]] = ..., sessions: _Optional[_Union[Sessions, _Mapping]] = ..., kill: _Optional[_Union[KillMsg, _Mapping]] = ..., compact: _Optional[_Union[CompactMsg, _Mapping]] = ..., list_conversations: _Optional[_Union[ListConversationsMsg, _Mapping]] = ..., list_providers: _Optional[_Union[ListProviders, _Mapping]] = ..., set_provider: _Optional[_Union[SetProviderMsg, _Mapping]] = ..., delete_provider: _Optional[_Union[DeleteProviderMsg, _Mapping]] = ..., set_active_model: _Optional[_Union[SetActiveModelMsg, _Mapping]] = ..., list_provider_presets: _Optional[_Union[ListProviderPresets, _Mapping]] = ..., list_mcps: _Optional[_Union[ListMcps, _Mapping]] = ..., set_local_mcps: _Optional[_Union[SetLocalMcpsMsg, _Mapping]] = ..., list_agents: _Optional[_Union[ListAgents, _Mapping]] = ..., get_agent: _Optional[_Union[GetAgentMsg, _Mapping]] = ..., create_agent: _Optional[_Union[CreateAgentMsg, _Mapping]] = ..., update_agent: _Optional[_Union[UpdateAgentMsg, _Mapping]] = ..., delete_agent: _Optional[_Union[DeleteAgentMsg, _Mapping]] = ..., install_package: _Optional[_Union[InstallPackageMsg, _Mapping]] = ..., uninstall_package: _Optional[_Union[UninstallPackageMsg, _Mapping]] = ..., list_packages: _Optional[_Union[ListPackages, _Mapping]] = ..., list_skills: _Optional[_Union[ListSkills, _Mapping]] = ..., start_service: _Optional[_Union[StartServiceMsg, _Mapping]] = ..., stop_service: _Optional[_Union[StopServiceMsg, _Mapping]] = ..., service_logs: _Optional[_Union[ServiceLogsMsg, _Mapping]] = ..., create_cron: _Optional[_Union[CreateCronMsg, _Mapping]] = ..., delete_cron: _Optional[_Union[DeleteCronMsg, _Mapping]] = ..., list_crons: _Optional[_Union[ListCrons, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., get_config: _Optional[_Union[GetConfig, _Mapping]] = ..., reload: _Optional[_Union[Reload, _Mapping]] = ..., get_stats: _Optional[_Union[GetStats, _Mapping]] = ..., subscribe_events: _Optional[_Union[SubscribeEvents, _Mapping]] = ..., set_enabled: _Optional[_Union[SetEnabledMsg, _Mapping]] = ..., list_models: _Optional[_Union[ListModels, _Mapping]] = ..., search_hub: _Optional[_Union[SearchHubMsg, _Mapping]] = ..., get_conversation_history: _Optional[_Union[GetConversationHistoryMsg, _Mapping]] = ..., delete_conversation: _Optional[_Union[DeleteConversationMsg, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("error", "pong", "response", "stream", "sessions", "compact", "conversation_list", "provider_list", "provider_preset_list", "mcp_list", "agent_info", "agent_list", "hub_event", "package_list", "skill_list", "service_log_output", "cron_info", "cron_list", "config", "stats", "agent_event", "model_list", "hub_package_list", "conversation_history")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_LIST_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_LIST_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_PRESET_LIST_FIELD_NUMBER: _ClassVar[int]
    MCP_LIST_FIELD_NUMBER: _ClassVar[int]
    AGENT_INFO_FIELD_NUMBER: _ClassVar[int]
    AGENT_LIST_FIELD_NUMBER: _ClassVar[int]
    HUB_EVENT_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_LIST_FIELD_NUMBER: _ClassVar[int]
    SKILL_LIST_FIELD_NUMBER: _ClassVar[int]
    SERVICE_LOG_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CRON_INFO_FIELD_NUMBER: _ClassVar[int]
    CRON_LIST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    AGENT_EVENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_LIST_FIELD_NUMBER: _ClassVar[int]
    HUB_PACKAGE_LIST_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_HISTORY_FIELD_NUMBER: _ClassVar[int]
    error: ErrorMsg
    pong: Pong
    response: SendResponse
    stream: StreamEvent
    sessions: SessionList
    compact: CompactResponse
    conversation_list: ConversationList
    provider_list: ProviderList
    provider_preset_list: ProviderPresetList
    mcp_list: McpList
    agent_info: AgentInfo
    agent_list: AgentList
    hub_event: HubEvent
    package_list: PackageList
    skill_list: SkillList
    service_log_output: ServiceLogOutput
    cron_info: CronInfo
    cron_list: CronList
    config: Config
    stats: DaemonStats
    agent_event: AgentEventMsg
    model_list: ModelList
    hub_package_list: HubPackageList
    conversation_history: ConversationHistory
    def __init__(self, error: _Optional[_Union[ErrorMsg, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., response: _Optional[_Union[SendResponse, _Mapping]] = ..., stream: _Optional[_Union[StreamEvent, _Mapping]] = ..., sessions: _Optional[_Union[SessionList, _Mapping]] = ..., compact: _Optional[_Union[CompactResponse, _Mapping]] = ..., conversation_list: _Optional[_Union[ConversationList, _Mapping]] = ..., provider_list: _Optional[_Union[ProviderList, _Mapping]] = ..., provider_preset_list: _Optional[_Union[ProviderPresetList, _Mapping]] = ..., mcp_list: _Optional[_Union[McpList, _Mapping]] = ..., agent_info: _Optional[_Union[AgentInfo, _Mapping]] = ..., agent_list: _Optional[_Union[AgentList, _Mapping]] = ..., hub_event: _Optional[_Union[HubEvent, _Mapping]] = ..., package_list: _Optional[_Union[PackageList, _Mapping]] = ..., skill_list: _Optional[_Union[SkillList, _Mapping]] = ..., service_log_output: _Optional[_Union[ServiceLogOutput, _Mapping]] = ..., cron_info: _Optional[_Union[CronInfo, _Mapping]] = ..., cron_list: _Optional[_Union[CronList, _Mapping]] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., stats: _Optional[_Union[DaemonStats, _Mapping]] = ..., agent_event: _Optional[_Union[AgentEventMsg, _Mapping]] = ..., model_list: _Optional[_Union[ModelList, _Mapping]] = ..., hub_package_list: _Optional[_Union[HubPackageList, _Mapping]] = ..., conversation_history: _Optional[_Union[ConversationHistory, _Mapping]] = ...) -> None: ...

class SendMsg(_message.Message):
    __slots__ = ("agent", "content", "session", "sender", "cwd", "new_chat", "resume_file")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    NEW_CHAT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FILE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    content: str
    session: int
    sender: str
    cwd: str
    new_chat: bool
    resume_file: str
    def __init__(self, agent: _Optional[str] = ..., content: _Optional[str] = ..., session: _Optional[int] = ..., sender: _Optional[str] = ..., cwd: _Optional[str] = ..., new_chat: _Optional[bool] = ..., resume_file: _Optional[str] = ...) -> None: ...

class StreamMsg(_message.Message):
    __slots__ = ("agent", "content", "session", "sender", "cwd", "new_chat", "resume_file")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    NEW_CHAT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FILE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    content: str
    session: int
    sender: str
    cwd: str
    new_chat: bool
    resume_file: str
    def __init__(self, agent: _Optional[str] = ..., content: _Optional[str] = ..., session: _Optional[int] = ..., sender: _Optional[str] = ..., cwd: _Optional[str] = ..., new_chat: _Optional[bool] = ..., resume_file: _Optional[str] = ...) -> None: ...

class Sessions(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillMsg(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class CompactMsg(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class ListConversationsMsg(_message.Message):
    __slots__ = ("agent", "sender")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    agent: str
    sender: str
    def __init__(self, agent: _Optional[str] = ..., sender: _Optional[str] = ...) -> None: ...

class GetConversationHistoryMsg(_message.Message):
    __slots__ = ("file_path",)
    FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    file_path: str
    def __init__(self, file_path: _Optional[str] = ...) -> None: ...

class DeleteConversationMsg(_message.Message):
    __slots__ = ("file_path",)
    FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    file_path: str
    def __init__(self, file_path: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ErrorMsg(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenUsage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens", "cache_hit_tokens", "cache_miss_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cache_hit_tokens: int
    cache_miss_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., cache_hit_tokens: _Optional[int] = ..., cache_miss_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("agent", "content", "session", "provider", "model", "usage")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    content: str
    session: int
    provider: str
    model: str
    usage: TokenUsage
    def __init__(self, agent: _Optional[str] = ..., content: _Optional[str] = ..., session: _Optional[int] = ..., provider: _Optional[str] = ..., model: _Optional[str] = ..., usage: _Optional[_Union[TokenUsage, _Mapping]] = ...) -> None: ...

class StreamEvent(_message.Message):
    __slots__ = ("start", "chunk", "thinking", "tool_start", "tool_result", "tools_complete", "end", "ask_user")
    START_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TOOL_START_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ASK_USER_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    chunk: StreamChunk
    thinking: StreamThinking
    tool_start: ToolStartEvent
    tool_result: ToolResultEvent
    tools_complete: ToolsCompleteEvent
    end: StreamEnd
    ask_user: AskUserEvent
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., chunk: _Optional[_Union[StreamChunk, _Mapping]] = ..., thinking: _Optional[_Union[StreamThinking, _Mapping]] = ..., tool_start: _Optional[_Union[ToolStartEvent, _Mapping]] = ..., tool_result: _Optional[_Union[ToolResultEvent, _Mapping]] = ..., tools_complete: _Optional[_Union[ToolsCompleteEvent, _Mapping]] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ..., ask_user: _Optional[_Union[AskUserEvent, _Mapping]] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("agent", "session")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    agent: str
    session: int
    def __init__(self, agent: _Optional[str] = ..., session: _Optional[int] = ...) -> None: ...

class StreamChunk(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class StreamThinking(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class ToolCallInfo(_message.Message):
    __slots__ = ("name", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: str
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ToolStartEvent(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ToolCallInfo]
    def __init__(self, calls: _Optional[_Iterable[_Union[ToolCallInfo, _Mapping]]] = ...) -> None: ...

class ToolResultEvent(_message.Message):
    __slots__ = ("call_id", "output", "duration_ms")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    output: str
    duration_ms: int
    def __init__(self, call_id: _Optional[str] = ..., output: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class ToolsCompleteEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("agent", "error", "provider", "model", "usage")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    error: str
    provider: str
    model: str
    usage: TokenUsage
    def __init__(self, agent: _Optional[str] = ..., error: _Optional[str] = ..., provider: _Optional[str] = ..., model: _Optional[str] = ..., usage: _Optional[_Union[TokenUsage, _Mapping]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("id", "agent", "created_by", "message_count", "alive_secs", "active", "title")
    ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIVE_SECS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    agent: str
    created_by: str
    message_count: int
    alive_secs: int
    active: bool
    title: str
    def __init__(self, id: _Optional[int] = ..., agent: _Optional[str] = ..., created_by: _Optional[str] = ..., message_count: _Optional[int] = ..., alive_secs: _Optional[int] = ..., active: _Optional[bool] = ..., title: _Optional[str] = ...) -> None: ...

class SessionList(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: str
    def __init__(self, summary: _Optional[str] = ...) -> None: ...

class ConversationInfo(_message.Message):
    __slots__ = ("agent", "sender", "seq", "title", "file_path", "message_count", "alive_secs", "date")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIVE_SECS_FIELD_NUMBER: _ClassVar[int]
    DATE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    sender: str
    seq: int
    title: str
    file_path: str
    message_count: int
    alive_secs: int
    date: str
    def __init__(self, agent: _Optional[str] = ..., sender: _Optional[str] = ..., seq: _Optional[int] = ..., title: _Optional[str] = ..., file_path: _Optional[str] = ..., message_count: _Optional[int] = ..., alive_secs: _Optional[int] = ..., date: _Optional[str] = ...) -> None: ...

class ConversationList(_message.Message):
    __slots__ = ("conversations",)
    CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    conversations: _containers.RepeatedCompositeFieldContainer[ConversationInfo]
    def __init__(self, conversations: _Optional[_Iterable[_Union[ConversationInfo, _Mapping]]] = ...) -> None: ...

class ConversationMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ConversationHistory(_message.Message):
    __slots__ = ("messages", "title", "agent")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ConversationMessage]
    title: str
    agent: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ConversationMessage, _Mapping]]] = ..., title: _Optional[str] = ..., agent: _Optional[str] = ...) -> None: ...

class ReplyToAsk(_message.Message):
    __slots__ = ("session", "content")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    content: str
    def __init__(self, session: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class AskOption(_message.Message):
    __slots__ = ("label", "description")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    label: str
    description: str
    def __init__(self, label: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class AskQuestion(_message.Message):
    __slots__ = ("question", "header", "options", "multi_select")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MULTI_SELECT_FIELD_NUMBER: _ClassVar[int]
    question: str
    header: str
    options: _containers.RepeatedCompositeFieldContainer[AskOption]
    multi_select: bool
    def __init__(self, question: _Optional[str] = ..., header: _Optional[str] = ..., options: _Optional[_Iterable[_Union[AskOption, _Mapping]]] = ..., multi_select: _Optional[bool] = ...) -> None: ...

class AskUserEvent(_message.Message):
    __slots__ = ("questions",)
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[AskQuestion]
    def __init__(self, questions: _Optional[_Iterable[_Union[AskQuestion, _Mapping]]] = ...) -> None: ...

class DaemonStats(_message.Message):
    __slots__ = ("uptime_secs", "active_sessions", "registered_agents", "active_model")
    UPTIME_SECS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AGENTS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_MODEL_FIELD_NUMBER: _ClassVar[int]
    uptime_secs: int
    active_sessions: int
    registered_agents: int
    active_model: str
    def __init__(self, uptime_secs: _Optional[int] = ..., active_sessions: _Optional[int] = ..., registered_agents: _Optional[int] = ..., active_model: _Optional[str] = ...) -> None: ...

class AgentEventMsg(_message.Message):
    __slots__ = ("agent", "session", "kind", "content", "timestamp")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    agent: str
    session: int
    kind: AgentEventKind
    content: str
    timestamp: str
    def __init__(self, agent: _Optional[str] = ..., session: _Optional[int] = ..., kind: _Optional[_Union[AgentEventKind, str]] = ..., content: _Optional[str] = ..., timestamp: _Optional[str] = ...) -> None: ...

class ListProviders(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetProviderMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteProviderMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetActiveModelMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProviderPresets(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMcps(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetLocalMcpsMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAgents(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAgentMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateAgentMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateAgentMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteAgentMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InstallPackageMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UninstallPackageMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPackages(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSkills(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartServiceMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopServiceMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServiceLogsMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateCronMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteCronMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCrons(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfig(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reload(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStats(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubscribeEvents(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetEnabledMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModels(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SearchHubMsg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProviderList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProviderPresetList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class McpList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgentInfo(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgentList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HubEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PackageList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SkillList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServiceLogOutput(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CronInfo(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CronList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Config(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HubPackageList(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
